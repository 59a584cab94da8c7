"""A flow's pipeline at work: its pieces, the drains of its sinks, and their topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from penstock import logs
from penstock.config.flow import Component, Flow
from penstock.engine.clocks import Clocks
from penstock.engine.draining import Drains, Slots
from penstock.engine.drainjob import drain_job
from penstock.engine.failures import Failures
from penstock.engine.forgetting import Forgetting
from penstock.engine.losses import Losses
from penstock.engine.piece import RunningPiece
from penstock.engine.policies import policy, with_timeout
from penstock.engine.replays import Replays
from penstock.engine.stats import messages_behind, piece_stats, rss_bytes, sink_stats, statuses
from penstock.engine.trimming import Trimming
from penstock.errors import Unavailable
from penstock.flow.backoff import Backoff
from penstock.flow.carrying import CarryOn
from penstock.flow.changes import find_changes
from penstock.flow.composite import Composite
from penstock.flow.deadletters import DeadLetters
from penstock.flow.drain import Drain
from penstock.flow.drainrecord import DrainRecord
from penstock.flow.graph import Graph
from penstock.flow.holds import Policy, SinkHolds
from penstock.flow.origins import event_ids, origins
from penstock.flow.park import Park
from penstock.flow.plan import Cut, Piece
from penstock.flow.planner import plan
from penstock.flow.planrecord import drain_folder, park_of, parks_of
from penstock.flow.receipts import Receipts
from penstock.flow.record import CutRecord, FlowRecord, Notify
from penstock.flow.topics import make_passage, make_topics
from penstock.flow.transaction import Coordinator
from penstock.limits import ONCE_TRIES
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink
from penstock.sinks.registry import cut_sink, make_sink, park_sink
from penstock.spark.compile import Compiled
from penstock.spark.session import session
from penstock.spark.values import Shape
from penstock.status import Status

log = logs.get("engine")

_WATCH_S = 0.2
_DRAINS_STOP_S = 5.0


class Engine:
    """One flow. `start` blocks until the queries run; `wait` until one of them cannot go on.

    For tests: a session that is used and not stopped, other sinks, the clock by which sinks that fail are tried
    again, and the wall clock by which messages that wait for them are late.
    """

    def __init__(
        self,
        flow: Flow,
        notify: Notify,
        *,
        once: bool = False,
        accept_loss: bool = False,
        spark: SparkSession | None = None,
        make_sink: Callable[[Component, Path], Sink] = make_sink,
        clock: Callable[[], float] = time.monotonic,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._flow = flow
        self._notify = notify
        self._once = once
        self._accept_loss = accept_loss
        self._lent = spark
        self._sink_of = make_sink
        self._clock = clock
        self._now_s = now_s
        self._with_park: set[str] = set()
        self._folder = flow.data_dir / "engine"
        self._log = EmbeddedLog(flow.data_dir)
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._pieces: list[RunningPiece] = []
        self._cuts: tuple[Cut, ...] = ()
        self._records: list[tuple[Piece, CutRecord]] = []
        self._drains: dict[str, tuple[SinkHolds, Drain]] = {}
        self._at_drains: Drains | None = None
        self._slots = Slots(1, self._stopping)
        self._spark: SparkSession | None = None
        self._receipts: Receipts | None = None
        self._replays: Replays | None = None
        self._sources = {one.topic: one.name for one in flow.receivers() if one.topic is not None}
        self._passed_before = 0

    # --- Start ----------------------------------------------------------------------------------

    def start(self) -> None:
        planned = plan(Graph(self._flow))
        self._cuts = planned.cuts
        make_topics(self._log, self._flow, planned)
        self._receipts = Receipts(self._flow.data_dir, writable=True)
        self._replays = Replays(
            self._flow.data_dir, self._log, self._flow.dead_letter, self._receipts
        )
        self._replays.finish()
        dead_letters = DeadLetters(self._flow.data_dir, TopicName.parse(self._flow.dead_letter))
        changes = find_changes(self._flow, planned)
        self._record = CarryOn(
            self._flow,
            changes,
            self._receipts,
            dead_letters,
            self._notify,
            accept_loss=self._accept_loss,
        ).apply()
        options = self._flow.system.engine
        self._spark = self._lent or session(
            options.master, f"penstock {self._flow.name}", **options.conf
        )
        self._slots = Slots(self._spark.sparkContext.defaultParallelism, self._stopping)
        composite = Composite(self._flow)
        shapes: dict[tuple[str, ...], Shape] = {}
        for piece in planned.pieces:
            compiled = Compiled(self._spark, piece, shapes, self._flow.data_dir)
            self._pieces.append(self._make_piece(compiled, dead_letters, composite))
        # First of all: what was settled just before a crash, nobody may have been told.
        self._notify(self._receipts.frontiers(), True)
        for running in self._pieces:
            running.check()
        for holds, drain in self._drains.values():  # first: these are not asked for anything
            if drain.parked or drain.coordinator.decisions.unfinished is not None:
                holds.hold(drain.sink, "it was held before the restart")
        for running in self._pieces:
            running.coordinator.settle()
        self._find_under_way()
        self._replays.resolve()
        drains = {name: drain for name, (_, drain) in self._drains.items()}
        self._at_drains = Drains(drains, self._stopping)
        self._passed_before = self._passed()
        if not self._once:
            for running in self._pieces:
                running.start()
            for running in self._pieces:
                running.warm_up()
            self._at_drains.start()

    def _make_piece(
        self, compiled: Compiled, dead_letters: DeadLetters, composite: Composite
    ) -> RunningPiece:
        piece = compiled.piece
        assert self._spark is not None
        assert self._receipts is not None
        known = self._record.piece(piece.name)
        assert known is not None, "the record is that of this plan"
        name = known.coordinator
        folder = self._folder / name
        sinks = {sink: self._make_sink(piece, sink) for sink in piece.sinks}
        policies = {sink: policy(piece, sink) for sink in piece.sinks}
        parks = {one: park_of(self._record, known, one) for one in self._parked(piece)}
        holds = SinkHolds(
            lambda sink: self._make_park(sink, parks.get(sink)),
            policies,
            clock=self._clock,
            stopping=self._stopping,
        )
        record = self._make_record(piece, self._receipts, dead_letters, composite)
        coordinator = Coordinator(
            name,
            sinks,
            folder,
            record,
            holds,
            atomic=self._flow.commit == "atomic",
            stopping=self._stopping,
        )
        for sink, topic in parks.items():
            park = Park(self._log, TopicName.parse(topic), parks_of(self._record, sink))
            if park.ends():
                self._make_park(sink, topic)  # one of an earlier version was subject to retention
            resolved = DrainRecord(
                sink, park, self._receipts, dead_letters, composite, self._sources, self._notify
            )
            place = self._folder / drain_folder(name, sink)
            losses = Losses(place)
            job = partial(drain_job, self._spark, self._flow.data_dir, self._slots, holds, losses)
            drain = Drain(coordinator, sink, park, holds, resolved, job, place, self._now_s)
            self._drains[f"{piece.name}/{sink}"] = (holds, drain)
        return RunningPiece(
            self._spark, compiled, coordinator, folder, self._flow.data_dir, once=self._once
        )

    def _parked(self, piece: Piece) -> list[str]:
        """The sinks that have a park."""
        atomic = self._flow.commit == "atomic"
        return [] if atomic else [one for one in piece.sinks if one in piece.components]

    def _make_record(
        self, piece: Piece, receipts: Receipts, dead_letters: DeadLetters, composite: Composite
    ) -> FlowRecord:
        told = (receipts, dead_letters, composite, self._sources, self._notify)
        behind = [cut.node for cut in piece.cuts]
        read = {source.topic for source in piece.sources if source.internal}
        cuts = {cut.sink: cut.topic for cut in self._cuts if cut.topic in read}
        if not cuts:
            return FlowRecord(*told, behind)
        of_origins = partial(origins, self._log), partial(event_ids, self._log)
        record = CutRecord(*told, behind, cuts, *of_origins)
        self._records.append((piece, record))
        return record

    def _find_under_way(self) -> None:
        """What earlier runs have left before links with state."""
        for piece, record in self._records:
            [running] = [one for one in self._pieces if one.piece is piece]
            record.start(running.coordinator.name, running.decided, running.ends())

    def _make_sink(self, piece: Piece, name: str) -> Sink:
        component = piece.components.get(name)
        if component is not None:
            return self._sink_of(with_timeout(piece, component), self._flow.data_dir)
        [cut] = [cut for cut in piece.cuts if cut.sink == name]
        return cut_sink(name, cut.topic, self._flow.data_dir)

    def _make_park(self, sink: str, topic: str | None) -> Sink:
        if topic is None:
            raise Unavailable(f"{sink} cannot be written, and nothing can wait for it elsewhere")
        if topic not in self._with_park:
            make_passage(self._log, TopicName.parse(topic), self._flow.topic_options(topic))
            self._with_park.add(topic)
        return park_sink(sink, topic, self._flow.data_dir, int(self._now_s() * 1_000_000))

    # --- At work --------------------------------------------------------------------------------

    def pass_time(self, time_us: int) -> None:
        """With `once`, between `start` and `wait`: no clock is looked at there, but time may have passed."""
        for running in self._pieces:
            running.pass_time(time_us)

    def finish(self) -> None:
        """With `once`: `wait`, then bring back the sinks that are held. Unavailable says what is left."""
        self.wait()
        assert self._at_drains is not None
        assert self._replays is not None
        left = self._at_drains.finish()
        self._replays.resolve()
        if left:
            what = "; ".join(str(one) for one in left)
            raise Unavailable(f"not everything was carried through: {what}. Run it again later")

    def wait(self) -> None:
        """Until told to stop. A query that dies is started again; with `once`, until all has been read, or
        one has died ONCE_TRIES times in a row (Unavailable)."""
        assert self._replays is not None, "start comes first"
        if self._once:
            for running in self._pieces:  # each after those that write what it reads
                running.start()
                self._watch([running])
            self.drain()
            self._replays.resolve()
            return
        self._watch(self._pieces)

    def _watch(self, pieces: list[RunningPiece]) -> None:
        assert self._replays is not None
        assert self._receipts is not None
        forgetting = Forgetting(self._receipts, self._log, self._sources)
        trimming = self._trimming()
        failures = [Failures(lambda one=one: one.coordinator.totals.transactions) for one in pieces]  # type: ignore[misc]
        waits = not self._once and any(running.waits_for_time for running in pieces)
        clocks = Clocks(pieces if waits else [])
        while not self._stopping.wait(_WATCH_S):
            clocks.look()
            forgetting.look()
            trimming.look()
            self._replays.resolve()
            for index, running in enumerate(pieces):
                if running.active:
                    continue
                reason = running.failure
                if reason is None and self._once:
                    continue
                if self._once and running.stuck is not None:
                    raise running.stuck
                in_a_row = failures[index].one_more()
                name = running.piece.name
                if self._once and in_a_row >= ONCE_TRIES:
                    raise Unavailable(
                        f"the query {name} failed {in_a_row} times in a row: {reason}"
                    )
                log.error("query died; it is started again", piece=name, reason=reason)
                if self._stopping.wait(Backoff(0.1, 5.0).delay_s(in_a_row)):
                    return
                running.start()
            if self._once and not any(running.active for running in pieces):
                return

    def _trimming(self) -> Trimming:
        parks = {drain.topic: drain.coordinator.decisions for _, drain in self._drains.values()}
        cuts = [
            (source.topic, running.coordinator.decisions)
            for running in self._pieces
            for source in running.piece.sources
            if source.internal
        ]
        return Trimming(self._log, parks, cuts)

    def drain(self) -> None:
        """Try the sinks that are held back, if their time has come."""
        if self._at_drains is not None:
            self._at_drains.run()

    def held(self) -> dict[str, Policy]:
        """The sinks that are held back, and how they are treated."""
        return {
            drain.sink: holds.policy(drain.sink)
            for holds, drain in self._drains.values()
            if drain.sink in holds.held()
        }

    @property
    def failure(self) -> str | None:
        """Why a query is down, if one is."""
        return next((one.failure for one in self._pieces if one.failure), None)

    # --- Stop -----------------------------------------------------------------------------------

    def abandon(self) -> None:
        """Nobody waits any more for what is in flight."""
        self._abandoned.set()

    def stop(self) -> None:
        """Carry through what was accepted, then stop between two batches."""
        deadline = time.monotonic() + self._flow.system.stop_timeout_s / 2
        while self.lag() and time.monotonic() < deadline and not self._abandoned.wait(0.02):
            pass
        self._stopping.set()
        if self._at_drains is not None:
            self._at_drains.join(_DRAINS_STOP_S)
        for running in self._pieces:
            try:
                running.stop()
            except Exception as error:  # Spark may be gone already
                log.warning("query does not stop", error=logs.describe(error))
        self.close()
        if self._spark is not None and self._lent is None:
            self._spark.stop()

    def close(self) -> None:
        """Let go of files. What is in flight stays where it is."""
        for running in self._pieces:
            running.coordinator.close()
        for _, drain in self._drains.values():
            drain.coordinator.close()
        if self._replays is not None:
            self._replays.close()
        if self._receipts is not None:
            self._receipts.close()

    def lag(self, *, internal: bool = False) -> int:
        """Messages in the topics that this flow reads that are not settled yet; or only in those between
        its pieces."""
        if self._receipts is None:
            return 0
        return messages_behind(self._log, self._pieces, internal=internal)

    def _passed(self) -> int:
        """Messages that are through and wait nowhere, however they ended."""
        if self._receipts is None:
            return 0
        settled = self._receipts.frontiers()
        through = sum(end for (topic, _), end in settled.items() if topic in self._sources)
        parked = sum(drain.parked for _, drain in self._drains.values())
        return through - parked - self.lag(internal=True)

    def _done(self) -> int:
        ended = sum(
            count
            for running in self._pieces
            for status, count in statuses(running, self._drains).items()
            if status != Status.NEW
        )
        return max(0, self._passed() - self._passed_before - ended)

    def stats(self) -> dict[str, Any]:
        peers, sinks = sink_stats(self._pieces, self._drains)
        return {
            "peers": peers,
            "partitions": {},
            "rss_bytes": rss_bytes(),
            "engine": {
                "lag": self.lag(),
                "done": self._done(),
                "sinks": sinks,
                "pieces": piece_stats(self._pieces, self._drains),
            },
        }
