"""Carrying on with a flow that was edited: what is settled, moved and given up before its queries start.

1. What is accepted as lost is given up: commits that are owed to sinks that are gone or others now, and messages
   in parks that nobody reads any more. Those end as failed, and are among the dead letters.
2. Coordinators that are no more finish what they had decided, and roll back the rest.
3. Topics move: who reads one from now on takes over how far it was read.
4. The record is written. Only then may a query start.

Each step may be repeated: killed between any two, or in the middle of one, the next start does the rest.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace

from penstock import faults, logs
from penstock.config.flow import Component, Flow
from penstock.errors import Unavailable
from penstock.flow.changes import Changes
from penstock.flow.composite import Composite, FlatComposite
from penstock.flow.deadletters import DeadLetters
from penstock.flow.decisions import Decisions
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.ending import give_up
from penstock.flow.holds import SinkHolds
from penstock.flow.park import NoPark, Park
from penstock.flow.plan import CUT, cut_topic
from penstock.flow.planrecord import PieceRecord, PlanRecord, TopicUse, parks_of, save_record
from penstock.flow.receipts import Receipts
from penstock.flow.record import FlowRecord, Notify
from penstock.flow.transaction import Coordinator
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink
from penstock.sinks.registry import cut_sink, make_sink, park_sink

log = logs.get("engine")


class CarryOn:
    """From the run before to this one."""

    def __init__(
        self,
        flow: Flow,
        changes: Changes,
        receipts: Receipts,
        dead_letters: DeadLetters,
        notify: Notify,
        *,
        accept_loss: bool = False,
    ) -> None:
        self._flow = flow
        self._changes = changes
        self._receipts = receipts
        self._dead_letters = dead_letters
        self._notify = notify
        self._accepts = accept_loss
        self._folder = flow.data_dir / "engine"
        self._log = EmbeddedLog(flow.data_dir)

    def apply(self) -> PlanRecord:
        """The record of the flow as it is now, written. WouldLose if that is not accepted."""
        before, now = self._changes.before, self._changes.now
        if not self._accepts:
            self._changes.check()
        for loss in self._changes.losses:
            log.warning("given up, as accepted", loss=str(loss))
        if before is not None:
            self._forgive()  # 1
            faults.point("carry.forgiven")
            retired = self._retired(before)
            for piece in retired:  # 2
                self._settle(piece)
            faults.point("carry.settled")
            for topic, use in now.topics.items():  # 3
                self._move(topic, use, before.topics.get(topic))
            faults.point("carry.moved")
            now = self._save(now)  # 4
            for piece in retired:
                shutil.rmtree(self._folder / piece.coordinator / "checkpoint", ignore_errors=True)
            return now
        return self._save(now)

    # --- 1 --------------------------------------------------------------------------------------

    def _forgive(self) -> None:
        for loss in self._changes.losses:
            if loss.owed is not None:
                folder, target = loss.owed
                decisions = Decisions(self._folder / folder)
                decisions.forgive(target)
                decisions.close()
        before = self._changes.before
        assert before is not None
        for loss in self._changes.losses:
            if loss.park is not None:
                self._empty(loss.park, before.topics[loss.park])

    def _empty(self, topic: str, use: TopicUse) -> None:
        before = self._changes.before
        assert before is not None
        park = Park(self._log, TopicName.parse(topic), parks_of(before, use.component))
        record = self._drain_record(use, park)
        coordinator = self._drain(use, record, {})
        try:
            coordinator.settle()
            reason = "it was given up when the flow was edited"
            give_up(coordinator, park, record, use.component, reason)
        finally:
            coordinator.close()

    # --- 2 --------------------------------------------------------------------------------------

    def _retired(self, before: PlanRecord) -> list[PieceRecord]:
        kept = {piece.coordinator for piece in self._changes.now.pieces}
        gone = [piece for piece in before.pieces if piece.coordinator not in kept]
        return [one for one in gone if (self._folder / one.coordinator / "decisions").exists()]

    def _settle(self, piece: PieceRecord) -> None:
        sinks = self._sinks(piece)
        sources = self._receivers()
        record = FlowRecord(
            self._receipts, self._dead_letters, Composite(self._flow), sources, self._notify
        )
        holds = SinkHolds(self._park, {})
        folder = self._folder / piece.coordinator
        coordinator = Coordinator(piece.coordinator, sinks, folder, record, holds)
        self._finish(coordinator)
        before = self._changes.before
        assert before is not None
        readers = {use.reader for use in self._changes.now.topics.values() if use.live}
        for topic, use in before.topics.items():
            ours = use.kind == "park" and use.reader.startswith(f"{piece.coordinator}/")
            if ours and use.reader not in readers and use.component in sinks:
                park = Park(self._log, TopicName.parse(topic), parks_of(before, use.component))
                drained = self._drain_record(use, park)
                self._finish(self._drain(use, drained, {use.component: sinks[use.component]}))

    def _finish(self, coordinator: Coordinator) -> None:
        try:
            coordinator.settle()
            for target in coordinator.decisions.owed:
                raise Unavailable(
                    f"{coordinator.name} is no more in the flow, and the sink {target}, which it owes a "
                    "commit, does not answer; start again when it does"
                )
        finally:
            coordinator.close()

    def _sinks(self, piece: PieceRecord) -> dict[str, Sink]:
        found: dict[str, Sink] = {}
        for name in piece.sinks:
            component = self._flow.components.get(name)
            if name.startswith(CUT):
                found[name] = cut_sink(name, cut_topic(name), self._flow.data_dir)
            elif component is not None and component.is_end:
                found[name] = self._make(component)
        return found

    def _make(self, component: Component) -> Sink:
        return make_sink(component, self._flow.data_dir)

    def _park(self, sink: str) -> Sink:
        before = self._changes.before
        assert before is not None
        topics = [name for name, one in before.topics.items() if one.kind == "park"]
        [topic] = [name for name in topics if before.topics[name].component == sink]
        return park_sink(sink, topic, self._flow.data_dir)

    def _drain_record(self, use: TopicUse, park: Park) -> DrainRecord:
        composite = FlatComposite(self._flow)
        sink, sources = use.component, self._receivers()
        return DrainRecord(
            sink, park, self._receipts, self._dead_letters, composite, sources, self._notify
        )

    def _drain(self, use: TopicUse, record: DrainRecord, sinks: Mapping[str, Sink]) -> Coordinator:
        piece, _, _ = use.reader.partition("/")
        name = f"{piece}.drain.{use.component}"
        return Coordinator(name, sinks, self._folder / use.reader, record, NoPark())

    def _receivers(self) -> dict[str, str]:
        """By topic, of the flow as it was and as it is."""
        found: dict[str, str] = {}
        for record in (self._changes.before, self._changes.now):
            for topic, use in {} if record is None else record.topics.items():
                if use.kind == "receiver":
                    found[topic] = use.component
        return found

    # --- 3, 4 -----------------------------------------------------------------------------------

    def _move(self, topic: str, use: TopicUse, before: TopicUse | None) -> None:
        if before is None or not use.live or before.reader == use.reader:
            return
        known = Decisions.peek(self._folder / before.reader)
        frontiers = self._receipts.frontiers() if known is None else known.frontiers
        ours = {place: end for place, end in frontiers.items() if place[0] == topic}
        decisions = Decisions(self._folder / use.reader)
        decisions.adopt(ours)
        decisions.close()
        log.info("topic has a new reader", topic=topic, before=before.reader, now=use.reader)

    def _save(self, now: PlanRecord) -> PlanRecord:
        pieces = []
        for piece in now.pieces:
            known = Decisions.peek(self._folder / piece.coordinator)
            pieces.append(replace(piece, last=-1 if known is None else known.last))
        saved = replace(now, pieces=tuple(pieces))
        save_record(self._flow.data_dir, saved)
        if self._accepts:
            for other in self._changes.others:  # what they left is not asked for again
                quiet = {name: replace(use, live=False) for name, use in other.topics.items()}
                save_record(self._flow.data_dir, replace(other, pieces=(), topics=quiet))
        return saved
