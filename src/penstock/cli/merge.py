"""The messages of several partitions as one sequence, by time, each partition in its own order.

Times within a partition need not rise: whoever sends may set them. So a message is placed by the
greatest time up to it in its partition; those never fall, and sorting by them keeps every partition's
order. What is merged is whole batches at a time, never message by message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Times = npt.NDArray[np.int64]


@dataclass(slots=True)
class Run:
    """Messages of one partition, next to each other there and in the merged sequence's source."""

    partition: int
    batch: pa.RecordBatch


@dataclass(slots=True)
class Round:
    """Runs whose messages are to be put out together, and in which order."""

    runs: list[Run]
    order: npt.NDArray[np.int64]
    """Positions in the runs' messages, laid end to end, in the order of the merged sequence."""


@dataclass(slots=True)
class _Cursor:
    """One partition: the batch at hand and the placing times of its messages."""

    partition: int
    batches: Iterator[pa.RecordBatch]
    batch: pa.RecordBatch | None = None
    times: Times = field(default_factory=lambda: np.empty(0, np.int64))
    greatest_us: int = np.iinfo(np.int64).min

    def fill(self) -> bool:
        """Make sure that there is a batch at hand; False at the end."""
        while self.batch is None:
            batch = next(self.batches, None)
            if batch is None:
                return False
            if batch.num_rows:
                micros = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
                self.times = np.maximum(np.maximum.accumulate(micros), self.greatest_us)
                self.greatest_us = int(self.times[-1])
                self.batch = batch
        return True

    def take(self, bound_us: int) -> tuple[pa.RecordBatch, Times] | None:
        """The messages placed at or before `bound_us`."""
        assert self.batch is not None
        count = int(np.searchsorted(self.times, bound_us, side="right"))
        if count == 0:
            return None
        taken = self.batch.slice(0, count), self.times[:count]
        left = self.batch.slice(count)
        self.batch = left if left.num_rows else None
        self.times = self.times[count:]
        return taken


def merged(sources: Sequence[tuple[int, Iterator[pa.RecordBatch]]]) -> Iterator[Round]:
    """`sources` are partitions with their batches."""
    if len(sources) == 1:
        partition, batches = sources[0]
        for batch in batches:
            yield Round([Run(partition, batch)], np.arange(batch.num_rows))
        return
    cursors = [_Cursor(partition, batches) for partition, batches in sources]
    while cursors := [cursor for cursor in cursors if cursor.fill()]:
        # Past the earliest end of a batch nothing is certain: what comes behind it may be earlier
        # than what the others have at hand.
        bound_us = min(int(cursor.times[-1]) for cursor in cursors)
        runs: list[Run] = []
        times: list[Times] = []
        for cursor in cursors:
            if (taken := cursor.take(bound_us)) is not None:
                runs.append(Run(cursor.partition, taken[0]))
                times.append(taken[1])
        yield Round(runs, np.argsort(np.concatenate(times), kind="stable"))
