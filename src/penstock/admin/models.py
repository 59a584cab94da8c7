"""What the API takes and gives, as models: the OpenAPI document is made of these."""

from __future__ import annotations

import datetime
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.config import JsonDict

from penstock.limits import (
    MAX_FRAME_BYTES,
    MAX_LISTED_MESSAGES,
    MAX_NAME_CHARS,
    MAX_PARTITIONS,
    SEGMENT_AGE_S,
    SEGMENT_BYTES,
    GiB,
)
from penstock.log.interface import PartitionInfo, Retention, TopicConfig, TopicInfo
from penstock.status import Status
from penstock.supervisor.child import ChildState
from penstock.supervisor.overview import ProcessView

NAME_PATTERN = r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
NAMESPACE_PATTERN = r"^(_system|[a-z0-9]([a-z0-9._-]*[a-z0-9])?)$"
MAX_OFFSET = 2**53 - 1
"""The largest whole number that every JSON reader takes as it is."""
_MAX_SECONDS = 1e9
"""Thirty years: more is a mistake, and would not fit a timestamp."""


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _a_number(value: object) -> object:
    """JSON has numbers of its own: `true` and `"1"` are none."""
    if isinstance(value, (bool, str)):
        raise ValueError("Input should be a number")
    return value


Whole = Annotated[int, BeforeValidator(_a_number)]
Number = Annotated[float, BeforeValidator(_a_number)]
# Limits of an optional number belong to the number: on the union they are checked, but their names in
# the description would be none that JSON Schema knows.
RetentionAge = Annotated[float, Field(gt=0, le=_MAX_SECONDS), BeforeValidator(_a_number)]
RetentionSize = Annotated[int, Field(gt=0, le=MAX_OFFSET), BeforeValidator(_a_number)]


class ProcessHealth(Model):
    name: str
    state: ChildState
    pid: int | None
    restarts: int = Field(ge=0)
    since: datetime.datetime = Field(description="When it came into its state.")
    last_error: str | None = Field(description="Why it last died.")

    @classmethod
    def of(cls, process: ProcessView) -> ProcessHealth:
        return cls(
            name=process.name,
            state=process.state,
            pid=process.pid,
            restarts=process.restarts,
            since=datetime.datetime.fromtimestamp(process.since, datetime.UTC),
            last_error=process.last_error,
        )


class Health(Model):
    """`degraded`: some process is not ready at the moment; it is being started again."""

    status: Literal["ok", "degraded"]
    flow: str
    version: str
    processes: list[ProcessHealth]


class Ready(Model):
    ready: Literal[True] = True


class RetentionModel(Model):
    """What may be deleted, oldest first. Null keeps for ever; both may be given."""

    age_s: RetentionAge | None = None
    size_bytes: RetentionSize | None = Field(default=None, description="Per partition.")


class TopicConfigModel(Model):
    partitions: Whole = Field(default=1, ge=1, le=MAX_PARTITIONS)
    ids: Literal["log", "producer"] = "log"
    compression: Literal["none", "lz4", "zstd"] = "none"
    retention: RetentionModel = RetentionModel()
    segment_bytes: Whole = Field(default=SEGMENT_BYTES, ge=MAX_FRAME_BYTES, le=16 * GiB)
    segment_age_s: Number = Field(default=SEGMENT_AGE_S, gt=0, le=_MAX_SECONDS)

    @classmethod
    def of(cls, config: TopicConfig) -> TopicConfigModel:
        retention = RetentionModel.model_construct(
            age_s=config.retention.age_s, size_bytes=config.retention.size_bytes
        )
        # What is stored is shown as it is, also where it would not be accepted anew.
        return cls.model_construct(
            partitions=config.partitions,
            ids=config.ids,
            compression=config.compression,
            retention=retention,
            segment_bytes=config.segment_bytes,
            segment_age_s=config.segment_age_s,
        )

    def to_config(self, present: TopicConfig | None) -> TopicConfig:
        """`present`: of the topic that is there; it keeps what the request does not name."""
        if present is None:
            present = TopicConfig()
        stated: dict[str, Any] = {
            field.name: getattr(self, field.name)
            for field in fields(TopicConfig)
            if field.name in self.model_fields_set
        }
        if "retention" in stated:
            retention = self.retention
            stated["retention"] = Retention(retention.age_s, retention.size_bytes)
        return replace(present, **stated)


_ONE_PARTITION: JsonDict = {
    "if": {"properties": {"ids": {"const": "producer"}}, "required": ["ids"]},
    "then": {"properties": {"partitions": {"const": 1}}},
}


class NewTopic(TopicConfigModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra=_ONE_PARTITION)

    namespace: str = Field(
        default="default", min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN
    )
    topic: str = Field(min_length=1, max_length=MAX_NAME_CHARS, pattern=NAME_PATTERN)

    @model_validator(mode="after")
    def _ids_rise_in_one_partition(self) -> Self:
        if self.ids == "producer" and self.partitions != 1:
            raise ValueError("with ids: producer there is exactly one partition")
        return self


class PartitionModel(Model):
    partition: int
    begin: int = Field(description="The oldest offset that is kept.")
    end: int = Field(description="The offset that the next message will have.")
    size_bytes: int
    segments: int
    packed_segments: int
    writer: str | None = Field(description="Who writes now.")
    last_append: datetime.datetime | None

    @classmethod
    def of(cls, info: PartitionInfo) -> PartitionModel:
        last_append = None
        if info.last_append_us is not None:
            last_append = datetime.datetime.fromtimestamp(info.last_append_us / 1e6, datetime.UTC)
        return cls(
            partition=info.partition,
            begin=info.begin,
            end=info.end,
            size_bytes=info.size_bytes,
            segments=info.segments,
            packed_segments=info.packed_segments,
            writer=info.writer,
            last_append=last_append,
        )


class TopicSummary(Model):
    namespace: str
    topic: str
    partitions: int
    messages: int = Field(description="Kept now, over all partitions.")
    size_bytes: int

    @classmethod
    def of(cls, info: TopicInfo) -> TopicSummary:
        return cls(
            namespace=info.name.namespace,
            topic=info.name.topic,
            partitions=len(info.partitions),
            messages=sum(partition.end - partition.begin for partition in info.partitions),
            size_bytes=sum(partition.size_bytes for partition in info.partitions),
        )


class DamagedTopic(Model):
    namespace: str
    topic: str
    reason: str = Field(description="What is wrong with it on disk.")


class TopicList(Model):
    topics: list[TopicSummary]
    damaged: list[DamagedTopic] = Field(
        default=[], description="Topics that are there and cannot be described."
    )


class TopicDescription(Model):
    namespace: str
    topic: str
    config: TopicConfigModel
    partitions: list[PartitionModel]

    @classmethod
    def of(cls, info: TopicInfo) -> TopicDescription:
        return cls(
            namespace=info.name.namespace,
            topic=info.name.topic,
            config=TopicConfigModel.of(info.config),
            partitions=[PartitionModel.of(partition) for partition in info.partitions],
        )


class MessageId(Model):
    peer: str
    stream: str
    seq: int


class MessageModel(Model):
    topic: str
    partition: int
    offset: int
    time: str = Field(description="ISO 8601, UTC.")
    id: MessageId
    key: str | None
    meta: dict[str, str]
    payload: str
    encoding: Literal["base64"] | None = Field(
        default=None, description="Set when the payload is not UTF-8."
    )
    key_encoding: Literal["base64"] | None = Field(
        default=None, description="Set when the key is not UTF-8."
    )


class MessageList(Model):
    messages: list[MessageModel] = Field(max_length=MAX_LISTED_MESSAGES)
    next_offset: int = Field(description="Where to go on reading.")
    end: int = Field(description="The offset that the next message will have.")
    corrupt: list[str] = Field(description="What was left out because it fails its checksum.")


class MessageQuery(Model):
    partition: int = Field(default=0, ge=0, lt=MAX_PARTITIONS)
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET)
    limit: int = Field(default=100, ge=1, le=MAX_LISTED_MESSAGES)


class DeleteQuery(Model):
    confirm: str = Field(
        max_length=2 * MAX_NAME_CHARS + 1, description="The topic's name again: NAMESPACE/TOPIC."
    )


class ReceiptQuery(Model):
    at: str | None = Field(
        default=None,
        pattern=r"^[0-9]{1,4}:[0-9]{1,15}$",
        description="PARTITION:OFFSET, where the message is; without it, it is searched for.",
    )

    @property
    def place(self) -> tuple[int, int] | None:
        if self.at is None:
            return None
        partition, _, offset = self.at.partition(":")
        return int(partition), int(offset)


class BranchModel(Model):
    status: Status
    reason: str | None = None


class ReceiptModel(Model):
    """What became of one message."""

    id: str
    status: Status
    reason: str | None = Field(default=None, description="Why it is not done.")
    branches: dict[str, BranchModel] = Field(
        default={}, description="Where it was copied: how far it came on each branch."
    )


class ListQuery(Model):
    namespace: str | None = Field(
        default=None, min_length=1, max_length=MAX_NAME_CHARS, pattern=NAMESPACE_PATTERN
    )
