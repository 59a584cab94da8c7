"""Messages that were accepted and can no longer be read: retention took them, or their bytes are damaged.

Nobody knows more of them than where they were. They end as failed, and are kept as ranges: a million of them cost
as much as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.errors import CorruptBatch
from penstock.limits import LOST_RANGES, MAX_REASON_CHARS


@dataclass(frozen=True, slots=True, order=True)
class Lost:
    """Offsets of one partition, from `first` up to, not including, `end`."""

    topic: str
    partition: int
    first: int
    end: int
    reason: str

    @property
    def count(self) -> int:
        return self.end - self.first

    def __str__(self) -> str:
        last = self.end - 1
        span = f"offset {last}" if self.first == last else f"offsets {self.first} to {last}"
        return f"{span} of {self.topic}/{self.partition} cannot be read: {self.reason}"

    def within(self, first: int, end: int) -> Lost:
        return replace(self, first=max(first, self.first), end=min(end, self.end))


RETENTION = "retention removed them"


def missing(
    corrupt: Sequence[CorruptBatch], topic: str, partition: int, first: int, end: int
) -> Lost:
    """What a reader has not given, who came across this damage. Senders are told what is wrong; in which file, is
    for the log."""
    damage = [found for found in corrupt if found.first < end and found.last >= first]
    reason = "; ".join(dict.fromkeys(found.reason for found in damage)) or RETENTION
    return Lost(topic, partition, first, end, reason)


MANY = "much is damaged around here; some of these may have gone through"


def merged(found: Iterable[Lost]) -> list[Lost]:
    """In order, each offset once, and no more than LOST_RANGES: what is beyond becomes one of each partition."""
    kept: list[Lost] = []
    for one in sorted(found):
        last = kept[-1] if kept else None
        if last is not None and (last.topic, last.partition) == (one.topic, one.partition):
            one = one.within(last.end, one.end)
            if one.count > 0 and len(kept) >= LOST_RANGES:
                kept[-1] = replace(last, end=one.end, reason=MANY)
                continue
            if one.first == last.end and one.reason == last.reason:
                kept[-1] = replace(last, end=max(last.end, one.end))
                continue
        if one.count > 0:
            kept.append(replace(one, reason=one.reason[:MAX_REASON_CHARS]))
    return kept
