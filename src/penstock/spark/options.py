"""The options of the format `penstock`, as people write them and as the source uses them."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import orjson

from penstock.config.spelling import nearest
from penstock.config.units import parse_size
from penstock.errors import ConfigError
from penstock.log import TopicName

DATA_DIR_VARIABLE = "PENSTOCK_DATA_DIR"
Edge: TypeAlias = Literal["earliest", "latest"]


@dataclass(frozen=True, slots=True, order=True)
class At:
    """A partition of a topic; `TOPIC/PARTITION` in offsets."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"

    @classmethod
    def parse(cls, text: str) -> At:
        topic, _, partition = text.rpartition("/")
        if not topic or not (partition.isascii() and partition.isdigit()):
            raise ConfigError(f"{text!r}: expected TOPIC/PARTITION, such as orders/0")
        return cls(str(TopicName.parse(topic)), int(partition))


@dataclass(frozen=True, slots=True)
class Where:
    """Where reading begins or ends: an edge, a time, or an edge with exceptions by partition."""

    edge: Edge
    time_us: int | None = None
    offsets: Mapping[At, int | Edge] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    data_dir: Path
    topics: tuple[TopicName, ...]
    start: Where
    end: Where
    max_rows: int | None
    max_bytes: int | None
    min_partitions: int
    columns: tuple[str, ...] | None
    fail_on_data_loss: bool
    clock: Path | None = None
    """For the engine: the file that says how far time has come (see `spark.clock`)."""
    losses: Path | None = None
    """For the engine: the folder in which is noted what cannot be read (see `spark.losses`)."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _Given(options)
        known = cls(
            data_dir=given.data_dir(),
            topics=given.topics(),
            start=given.start(),
            end=given.where("endingOffsets", "latest"),
            max_rows=given.count("maxRowsPerTrigger"),
            max_bytes=given.size("maxBytesPerTrigger"),
            min_partitions=given.count("minPartitions") or 1,
            columns=given.names("columns"),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            clock=given.path("clock"),
            losses=given.path("losses"),
        )
        given.refuse_unknown()
        return known


@dataclass(frozen=True, slots=True)
class WriteOptions:
    data_dir: Path
    topic: TopicName
    partition_by: Literal["key", "stream"]
    partitions: int | None
    peer: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _Given(options)
        known = cls(
            data_dir=given.data_dir(),
            topic=given.topic(),
            partition_by="stream" if given.choice("partitionBy", "key", "stream") else "key",
            partitions=given.count("partitions"),
            peer=given.take("peer") or "spark",
        )
        given.refuse_unknown(_OF_SPARK)
        return known


_OF_SPARK = ("checkpointLocation", "queryName", "path")
"""What Spark hands to every writer beside its own options."""


class _Given:
    """What was given, and what has been asked for. Names are compared without case, as Spark does."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._left = {name.lower(): value for name, value in options.items()}
        self._asked: list[str] = []

    def take(self, name: str) -> str | None:
        self._asked.append(name)
        value = self._left.pop(name.lower(), None)
        return value.strip() if value is not None and value.strip() else None

    def data_dir(self) -> Path:
        given = self.take("dataDir") or os.environ.get(DATA_DIR_VARIABLE)
        if given is None:
            raise ConfigError(
                "option dataDir: say where the topics are (the folder that `penstock run` uses, "
                f".penstock unless told otherwise), or set {DATA_DIR_VARIABLE}"
            )
        return Path(given).absolute()

    def topics(self) -> tuple[TopicName, ...]:
        one, many = self.take("topic"), self.take("topics")
        if (one is None) == (many is None):
            raise ConfigError("option topic: say one topic, or several with topics=a,b")
        names = [one] if one is not None else [part.strip() for part in str(many).split(",")]
        return tuple(dict.fromkeys(TopicName.parse(name) for name in names if name))

    def topic(self) -> TopicName:
        one = self.take("topic")
        if one is None:
            raise ConfigError("option topic: say which topic to write")
        return TopicName.parse(one)

    def choice(self, name: str, *words: str) -> int:
        """Which of the words it is; the first if nothing is said."""
        text = self.take(name) or words[0]
        if text.lower() not in words:
            raise ConfigError(f"option {name}: expected {' or '.join(words)}, not {text[:40]!r}")
        return words.index(text.lower())

    def start(self) -> Where:
        time = self.take("startingTime")
        if time is None:
            return self.where("startingOffsets", "earliest")
        if self.take("startingOffsets") is not None:
            raise ConfigError("options startingTime and startingOffsets: say one of them")
        return Where("earliest", time_us=_moment("startingTime", time))

    def where(self, name: str, default: Edge) -> Where:
        text = self.take(name)
        if text is None:
            return Where(default)
        if (edge := text.lower()) in ("earliest", "latest"):
            return Where("earliest" if edge == "earliest" else "latest")
        return Where(default, offsets=_offsets(name, text))

    def count(self, name: str) -> int | None:
        text = self.take(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text)):
            raise ConfigError(f"option {name}: expected a whole number above 0, not {text[:40]!r}")
        return int(text)

    def size(self, name: str) -> int | None:
        text = self.take(name)
        try:
            size = None if text is None else parse_size(text)
        except ValueError as error:
            raise ConfigError(f"option {name}: {error}") from None
        if size == 0:
            raise ConfigError(f"option {name}: expected more than 0 bytes")
        return size if isinstance(size, int) else None

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self.take(name)
        if text is None:
            return None
        return tuple(part for piece in text.split(",") if (part := piece.strip()))

    def path(self, name: str) -> Path | None:
        text = self.take(name)
        return None if text is None else Path(text)

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.take(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"option {name}: expected true or false, not {text[:40]!r}")
        return text.lower() == "true"

    def refuse_unknown(self, allowed: Iterable[str] = ()) -> None:
        for name in sorted(set(self._left) - {other.lower() for other in allowed}):
            close = nearest(name, self._asked)
            hint = f"; did you mean {close}?" if close else f" (there are {', '.join(self._asked)})"
            raise ConfigError(f"there is no option {name[:40]}{hint}")


def _moment(name: str, text: str) -> int:
    """Microseconds since 1970. A time without a zone is UTC: executors have no common local time."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"option {name}: expected a time such as 2026-01-31T12:00:00Z, not {text[:40]!r}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime.fromtimestamp(0, datetime.UTC)) // datetime.timedelta(
        microseconds=1
    )


def _offsets(name: str, text: str) -> dict[At, int | Edge]:
    expected = 'expected earliest, latest, or JSON such as {"orders/0": 1500, "orders/1": "latest"}'
    try:
        given = orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ConfigError(f"option {name}: {expected}, not {text[:80]!r}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"option {name}: {expected}")
    found: dict[At, int | Edge] = {}
    for key, value in given.items():
        if value not in ("earliest", "latest") and not (type(value) is int and value >= 0):
            raise ConfigError(f"option {name}, {key}: {expected}")
        found[At.parse(key)] = value
    return found


__all__ = ["DATA_DIR_VARIABLE", "At", "Edge", "ReadOptions", "Where", "WriteOptions"]
