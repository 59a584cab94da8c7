"""How messages leave a park: by a decision of the drain's coordinator, whether they are delivered or given up."""

from __future__ import annotations

from collections.abc import Mapping

from penstock import logs
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.lost import Lost
from penstock.flow.park import Park
from penstock.flow.terms import Ended, Job, Result
from penstock.flow.transaction import Coordinator
from penstock.sinks.interface import Sink, Txn
from penstock.status import Status

log = logs.get("engine")


def give_up(
    coordinator: Coordinator,
    park: Park,
    record: DrainRecord,
    sink: str,
    reason: str,
    until: Mapping[int, int] | None = None,
) -> None:
    """What waits in the park now, or up to there, ends as failed, and goes to the dead letters."""
    if until is None:
        until = park.ends()
    while True:
        ranges = park.ranges(coordinator.decisions.frontiers, until)
        if not ranges:
            return
        end(coordinator, park, record, ranges, sink, Status.FAILED, reason)


def end(
    coordinator: Coordinator,
    park: Park,
    record: DrainRecord,
    ranges: dict[int, tuple[int, int]],
    sink: str,
    status: Status,
    reason: str,
) -> None:
    """These messages end, and no sink is asked: the front of the park moves on."""
    count = sum(stop - start for start, stop in ranges.values())
    log.warning("giving up", sink=sink, status=str(status), messages=count)

    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        gaps: list[Lost] = []
        ended = [
            Ended(place, event, sink, status, reason, had=had)
            for place, event, had in park.messages(ranges, gaps)
        ]
        return Result(ended=[*ended, *record.gone(coordinator.decisions.frontiers, gaps)])

    carry(coordinator, park, ranges, job, ask_sinks=False)


def carry(
    coordinator: Coordinator,
    park: Park,
    ranges: dict[int, tuple[int, int]],
    job: Job,
    *,
    ask_sinks: bool = True,
) -> None:
    topic = str(park.topic)
    begins = {(topic, partition): start for partition, (start, _) in ranges.items()}
    frontiers = {(topic, partition): stop for partition, (_, stop) in ranges.items()}
    number = coordinator.decisions.last + 1
    coordinator.process(number, frontiers, job, begins, ask_sinks=ask_sinks)
