"""Topics as source and sink: one flow's end is another one's beginning."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.options import Options, Topic
from penstock.config.registry import Kind, declare


@declare(Kind.RECEIVER, "topic", "Reads a topic that something else writes.")
class TopicReceiverOptions(Options):
    topic: Topic
    """The topic to read."""

    start: Literal["beginning", "end"] = "beginning"
    """Where to begin the first time."""


@declare(
    Kind.SINK,
    "topic",
    "Writes a topic, in the same transaction as everything else.",
    available=True,
)
class TopicSinkOptions(Options):
    topic: Topic
    """The topic to write."""

    partition_by: Literal["key", "stream"] = "key"
    """What decides a message's partition: its key, or its stream."""

    acks: Literal["write", "majority", "all"] = "majority"
    """How many copies must have it, on Kafka. On the embedded log all three mean fsynced."""

    partitions: int | None = Field(None, ge=1)
    """Partitions of the topic, when it is made or grows. Default: `system.log.partitions`."""
