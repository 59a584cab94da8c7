"""A small flow without Spark, run in a process of its own so that it can be killed anywhere.

    python -m tests.flow.drill FOLDER MESSAGES

Messages 0 to MESSAGES-1 go through in batches of 10, in two tasks (even and odd). Sinks `a` and `b` get every
message, `c` those that 3 divides; every 17th is unroutable. Where batch n begins is read from a file that stands
for Spark's checkpoint, written after the batch; so a batch may come again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from penstock import faults
from penstock.flow.composite import compose
from penstock.flow.decisions import Decision
from penstock.flow.holds import SinkHolds
from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.terms import Ended, Job, Result, Vote
from penstock.flow.transaction import Coordinator
from penstock.message import EventId
from penstock.sinks.interface import Sink, SinkUnavailable, Txn
from penstock.status import Status
from tests.flow.folder_sink import FolderSink

TOPIC = "drill.web"
BATCH = 10


def wanted(sink: str, number: int) -> bool:
    return number % 17 != 0 and (sink != "c" or number % 3 == 0)


class DrillRecord:
    def __init__(self, receipts: Receipts) -> None:
        self._receipts = receipts

    def compose(
        self, ended: Iterable[Ended], parked: frozenset[str]
    ) -> list[tuple[Position, Receipt]]:
        places: dict[Position, dict[str, Branch]] = {}
        for one in ended:
            places.setdefault(one.position, {})[one.component] = Branch(one.status, one.reason)
        return [
            (place, Receipt(compose(b.status for b in found.values()), "", found))
            for place, found in places.items()
        ]

    def before(self, txn: Txn, decision: Decision) -> None:
        pass

    def write(self, txn: Txn, decision: Decision) -> None:
        self._receipts.settle(decision.frontiers, decision.exceptions, decision.parked)


def make_job(start: int, end: int) -> Job:
    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        result = Result()
        for partition in range(2):
            numbers = [n for n in range(start, end) if n % 2 == partition]
            for name, sink in targets.items():
                assert isinstance(sink, FolderSink)
                lines = [str(n) for n in numbers if wanted(name, n)]
                try:
                    token = sink.write(txn, partition, 0, lines)
                    result.votes.append(Vote(name, True, token, len(lines)))
                except SinkUnavailable as error:
                    result.votes.append(Vote(name, False, error=str(error)))
                if sink.name != name and lines:
                    offsets = np.array(list(map(int, lines)), np.int64)
                    result.parked.append(Parked.of(name, TOPIC, 0, offsets))
            if not rest:
                result.ended.extend(
                    _ended(n, "router", Status.UNROUTABLE) for n in numbers if n % 17 == 0
                )
        return result

    return job


def _ended(number: int, component: str, status: Status) -> Ended:
    place = Position(TOPIC, 0, number)
    return Ended(place, EventId("web", "s", number), component, status)


def run(folder: Path, messages: int, *, atomic: bool = False) -> Coordinator:
    sinks = {name: FolderSink(name, folder / name) for name in ("a", "b", "c")}
    holds = SinkHolds(lambda name: FolderSink(f"{name}-park", folder / f"{name}-park"), {})
    record = DrillRecord(Receipts(folder, writable=True))
    flow = Coordinator("drill", sinks, folder / "engine", record, holds, atomic=atomic)
    checkpoint = folder / "checkpoint"
    number = int(checkpoint.read_text()) if checkpoint.exists() else 0
    for batch in range(number, -(-messages // BATCH)):
        start, end = batch * BATCH, min(messages, (batch + 1) * BATCH)
        flow.process(batch, {(TOPIC, 0): end}, make_job(start, end))
        faults.point("drill.returned", number=batch)
        checkpoint.write_text(str(batch + 1))
    flow.settle()
    return flow


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]))
