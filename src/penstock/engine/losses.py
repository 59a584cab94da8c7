"""What a batch was to read, and could not: it ends as failed, with the batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock import logs
from penstock.flow.decisions import Frontiers
from penstock.flow.lost import Lost, merged
from penstock.flow.terms import Job, Result
from penstock.sinks.interface import Sink, Txn
from penstock.spark.losses import forget, noted

log = logs.get("engine")


class Losses:
    """Of one piece, or of a drain. `folder` is for the source's option `losses`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "losses"

    def forget(self) -> None:
        """Before the query starts, and when a batch is done."""
        forget(self.folder)

    def told(self, job: Job, begins: Frontiers, ends: Frontiers) -> Job:
        """The same, and what could not be read of the batch is in its result."""

        def run(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
            result = job(txn, targets, rest=rest)
            for one in merged(self._of(begins, ends)):
                log.error("messages are lost and end as failed", txn=str(txn), what=str(one))
                result.lost.append(one)
            return result

        return run

    def _of(self, begins: Frontiers, ends: Frontiers) -> list[Lost]:
        found = []
        for one in noted(self.folder):
            place = (one.topic, one.partition)
            if place in ends:
                found.append(one.within(begins.get(place, 0), ends[place]))
        return found
