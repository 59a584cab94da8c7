"""What the disk did, for the metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

FSYNC_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0)


@dataclass(slots=True)
class Commits:
    count: int = 0
    bytes_written: int = 0
    fsync_seconds_sum: float = 0.0
    fsync_buckets: list[int] = field(default_factory=lambda: [0] * (len(FSYNC_BUCKETS_S) + 1))

    def note(self, size: int, took_s: float) -> None:
        self.count += 1
        self.bytes_written += size
        self.fsync_seconds_sum += took_s
        self.fsync_buckets[bisect_left(FSYNC_BUCKETS_S, took_s)] += 1
