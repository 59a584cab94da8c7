"""`topic.json`: what is kept of a topic beside its messages, and what of it may change.

    partitions     how many; they only grow
    homes          over how many of them named streams and keys are spread: as many as there were first
    ids            who gives the ids; never changes, since what is stored was admitted by it
    seed           of all checks; never changes
    the rest       retention, compression, the limits of a segment: may change at any time

Partitions that come later take no named streams. Where such a stream's numbers, or an `Idempotency-Key`, are
remembered is `hash % homes`; if that moved, what is sent again would be stored twice, and a stream's later
messages could be read before its earlier ones.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import orjson

from penstock.errors import LogError, NoSuchTopic, TopicExists
from penstock.limits import MAX_PARTITIONS
from penstock.log.interface import Retention, TopicConfig
from penstock.log.names import TopicName


@dataclass(frozen=True, slots=True)
class Entry:
    config: TopicConfig
    seed: int
    homes: int

    @classmethod
    def load(cls, name: TopicName, path: Path) -> Entry:
        try:
            stored = orjson.loads(path.read_bytes())
            seed = int(stored.pop("seed"), 16)
            retention = Retention(**stored.pop("retention"))
            homes = stored.pop("homes", stored["partitions"])  # topics of earlier versions lack it
            config = TopicConfig(**stored, retention=retention)
            check(name, config)
            if not 1 <= homes <= config.partitions:
                raise ValueError(f"homes is {homes}, of {config.partitions} partitions")
            return cls(config, seed, homes)
        except FileNotFoundError:
            raise NoSuchTopic(f"there is no topic {name}") from None
        except (LogError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise LogError(f"{path} is damaged: {error}") from None

    def dump(self) -> bytes:
        # The seed is written as text: JSON numbers lose precision past 53 bits in other readers.
        stored = {**asdict(self.config), "homes": self.homes, "seed": f"{self.seed:016x}"}
        return orjson.dumps(stored, option=orjson.OPT_INDENT_2)

    def changed(self, name: TopicName, wanted: TopicConfig) -> Entry:
        """With other settings; TopicExists if they are such that cannot change."""
        if wanted.ids != self.config.ids:
            raise TopicExists(
                f"topic {name} was made with `ids: {self.config.ids}`, which cannot become "
                f"`ids: {wanted.ids}`: what is stored there was told apart by it; make another topic"
            )
        if wanted.ids == "producer" and wanted.partitions != 1:
            raise TopicExists(f"topic {name} has `ids: producer`, and so exactly one partition")
        if wanted.partitions < self.config.partitions:
            raise TopicExists(
                f"topic {name} has {self.config.partitions} partitions; partitions may only grow"
            )
        check(name, wanted)
        return replace(self, config=wanted)


def check(name: TopicName, config: TopicConfig) -> None:
    if not 1 <= config.partitions <= MAX_PARTITIONS:
        raise LogError(
            f"topic {name}: partitions must be 1 to {MAX_PARTITIONS}, not {config.partitions}"
        )
    if config.ids == "producer" and config.partitions != 1:
        raise LogError(f"topic {name}: with ids: producer there is exactly one partition")
    if config.compression not in ("none", "lz4", "zstd"):
        raise LogError(
            f"topic {name}: compression is none, lz4 or zstd, not {config.compression!r}"
        )
