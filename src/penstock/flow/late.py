"""What has waited for a sink for longer than the copies above it allow (`timeout_s`).

Only the time in the park counts, from the begin of the transaction that put the message there, by the wall clock: it
goes on while nothing runs. A park is in the order of parking, so what is late is at its front; all of one
transaction is late together, and so all that one message has become for this sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.flow.decisions import Frontiers
from penstock.limits import DRAIN_ROWS, LATE_STEP_S
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.topic import SINCE

_LOOK_ROWS = 1000
"""Read at a time: most looks end at the first message."""


class Late:
    """Of one park. Looks every now and then, or at once where the last look did not see all."""

    def __init__(
        self, log: EmbeddedLog, park: TopicName, timeout_s: float, now_s: Callable[[], float]
    ) -> None:
        self._log = log
        self._park = park
        self.timeout_s = timeout_s
        self._now_s = now_s
        self._step_s = min(LATE_STEP_S, timeout_s / 10)
        self._looked_s: float | None = None

    @property
    def is_due(self) -> bool:
        """Whether it is time to look. A wall clock may also be set back."""
        return self._looked_s is None or abs(self._now_s() - self._looked_s) >= self._step_s

    def ranges(self, drained: Frontiers, ends: Mapping[int, int]) -> dict[int, tuple[int, int]]:
        """What is late, by partition of the park; of much, the first DRAIN_ROWS."""
        now_s = self._now_s()
        found = {}
        rows = DRAIN_ROWS
        for partition, end in ends.items():
            start = drained.get((str(self._park), partition), 0)
            stop = self._first_in_time(partition, start, min(end, start + rows), now_s)
            if stop > start:
                found[partition] = (start, stop)
                rows -= stop - start
            if rows <= 0:
                break
        self._looked_s = None if rows <= 0 else now_s
        return found

    def _first_in_time(self, partition: int, start: int, end: int, now_s: float) -> int:
        """The first that is not late; `end` if all are."""
        if start >= end:
            return start
        latest_us = int((now_s - self.timeout_s) * 1_000_000)
        reader = self._log.reader(self._park, partition)
        try:
            for batch in reader.read(start, end=end, max_rows=_LOOK_ROWS):
                in_time = np.flatnonzero(_since_us(batch) > latest_us)
                if len(in_time):
                    first: int = batch.column("offset")[int(in_time[0])].as_py()
                    return first
        finally:
            reader.close()
        return end


def _since_us(batch: pa.RecordBatch) -> np.ndarray:
    """Since when each waits; where that was not noted yet, it is the message's own time."""
    noted = pc.map_lookup(batch.column("meta"), SINCE, "last").cast(pa.int64())
    own = batch.column("time").cast(pa.int64())
    found: np.ndarray = pc.coalesce(noted, own).to_numpy(zero_copy_only=False)
    return found
