"""A flow's pipeline at work: its pieces, the drains of its sinks, and their topics."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock import logs
from penstock.config.flow import Flow
from penstock.config.model import TopicOptions
from penstock.engine.piece import RunningPiece, batch_job
from penstock.engine.policies import policy
from penstock.errors import PenstockError
from penstock.flow.backoff import Backoff
from penstock.flow.composite import Composite
from penstock.flow.deadletters import DeadLetters
from penstock.flow.drain import Drain, DrainRecord, Park
from penstock.flow.graph import Graph
from penstock.flow.holds import SinkHolds
from penstock.flow.plan import Piece, Plan
from penstock.flow.planner import plan
from penstock.flow.receipts import Receipts
from penstock.flow.record import FlowRecord, Notify
from penstock.flow.topics import make_topic, park_topic
from penstock.flow.transaction import Coordinator, Job
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.interface import Sink
from penstock.sinks.registry import cut_sink, make_sink, park_sink
from penstock.spark.compile import Compiled
from penstock.spark.origin import origin_rows
from penstock.spark.session import session
from penstock.spark.values import Shape

log = logs.get("engine")

_WATCH_S = 0.2


class Engine:
    """One flow. `start` blocks until the queries run; `wait` until one of them cannot go on."""

    def __init__(self, flow: Flow, notify: Notify, *, once: bool = False) -> None:
        self._flow = flow
        self._notify = notify
        self._once = once
        self._folder = flow.data_dir / "engine"
        self._log = EmbeddedLog(flow.data_dir)
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._pieces: list[RunningPiece] = []
        self._drains: dict[str, tuple[SinkHolds, Drain]] = {}
        self._drainer = threading.Thread(target=self._drain_for_ever, name="drain", daemon=True)
        self._spark: SparkSession | None = None
        self._receipts: Receipts | None = None
        self._sources = {one.topic: one.name for one in flow.receivers() if one.topic is not None}

    # --- Start ----------------------------------------------------------------------------------

    def start(self) -> None:
        planned = plan(Graph(self._flow))
        self._make_topics(planned)
        self._receipts = Receipts(self._flow.data_dir, writable=True)
        options = self._flow.system.engine
        self._spark = session(options.master, f"penstock {self._flow.name}", **options.conf)
        dead_letters = DeadLetters(self._flow.data_dir, TopicName.parse(self._flow.dead_letter))
        composite = Composite(self._flow)
        shapes: dict[tuple[str, ...], Shape] = {}
        for piece in planned.pieces:
            compiled = Compiled(self._spark, piece, shapes)
            self._pieces.append(self._make_piece(compiled, dead_letters, composite))
        for running in self._pieces:
            running.coordinator.settle()
        for holds, drain in self._drains.values():
            if drain.parked or drain.coordinator.decisions.unfinished is not None:
                holds.hold(drain.sink, "it was held before the restart")
        self._notify(self._receipts.frontiers(), True)
        if not self._once:
            for running in self._pieces:
                running.start()
            for running in self._pieces:
                running.warm_up()
            self._drainer.start()

    def _make_topics(self, planned: Plan) -> None:
        usual = self._flow.topic_options
        make_topic(self._log, TopicName.parse(self._flow.dead_letter), TopicOptions(partitions=1))
        for cut in planned.cuts:
            make_topic(self._log, TopicName.parse(cut.topic), usual(cut.topic))
        for one in self._flow.components.values():
            if one.module == "sink.topic":
                topic = str(one.options.topic)  # type: ignore[attr-defined]
                wanted = usual(topic)
                asked = one.options.partitions  # type: ignore[attr-defined]
                if asked is not None:
                    wanted = wanted.model_copy(update={"partitions": asked})
                make_topic(self._log, TopicName.parse(topic), wanted)

    def _make_piece(
        self, compiled: Compiled, dead_letters: DeadLetters, composite: Composite
    ) -> RunningPiece:
        piece = compiled.piece
        assert self._spark is not None
        assert self._receipts is not None
        name = f"{self._flow.name}.{piece.name}"
        folder = self._folder / name
        sinks = {sink: self._make_sink(piece, sink) for sink in piece.sinks}
        policies = {sink: policy(piece, sink) for sink in piece.sinks}
        holds = SinkHolds(self._make_park, policies, stopping=self._stopping)
        record = FlowRecord(self._receipts, dead_letters, composite, self._sources, self._notify)
        coordinator = Coordinator(
            name,
            sinks,
            folder,
            record,
            holds,
            atomic=self._flow.commit == "atomic",
            stopping=self._stopping,
        )
        for sink in piece.sinks:
            if sink in piece.components and self._flow.commit != "atomic":
                park = Park(self._log, park_topic(self._flow, sink))
                resolved = DrainRecord(
                    sink, park, self._receipts, dead_letters, composite, self._sources, self._notify
                )
                drain = Drain(
                    coordinator,
                    sink,
                    park,
                    holds,
                    resolved,
                    self._drain_job,
                    folder / f"drain.{sink}",
                )
                self._drains[f"{piece.name}/{sink}"] = (holds, drain)
        return RunningPiece(
            self._spark, compiled, coordinator, folder, self._flow.data_dir, once=self._once
        )

    def _make_sink(self, piece: Piece, name: str) -> Sink:
        component = piece.components.get(name)
        if component is not None:
            return make_sink(component, self._flow.data_dir)
        [cut] = [cut for cut in piece.cuts if cut.sink == name]
        return cut_sink(name, cut.topic, self._flow.data_dir)

    def _make_park(self, sink: str) -> Sink:
        topic = park_topic(self._flow, sink)
        make_topic(self._log, topic, self._flow.topic_options(str(topic)))
        return park_sink(sink, str(topic), self._flow.data_dir)

    def _drain_job(self, sink: str, topic: TopicName, ranges: Mapping[int, tuple[int, int]]) -> Job:
        assert self._spark is not None
        rows = (
            self._spark.read.format("penstock")
            .option("dataDir", str(self._flow.data_dir))
            .option("topic", str(topic))
            .option("startingOffsets", _offsets(topic, {p: a for p, (a, _) in ranges.items()}))
            .option("endingOffsets", _offsets(topic, {p: b for p, (_, b) in ranges.items()}))
            .load()
        )
        nothing = F.lit(None).cast("string")
        return batch_job(
            origin_rows(rows)
            .withColumn("sink", F.lit(sink))
            .withColumns({"status": nothing, "reason": nothing, "branch": nothing})
        )

    # --- At work --------------------------------------------------------------------------------

    def wait(self) -> None:
        """Until told to stop. A query that dies is started again; with `once`, until all is done."""
        if self._once:
            for running in self._pieces:  # each after those that write what it reads
                running.start()
                self._watch([running])
            self._drain_once()
            return
        self._watch(self._pieces)

    def _watch(self, pieces: list[RunningPiece]) -> None:
        failures = dict.fromkeys(range(len(pieces)), 0)
        while not self._stopping.wait(_WATCH_S):
            for index, running in enumerate(pieces):
                if running.active:
                    continue
                reason = running.failure
                if reason is None and self._once:
                    continue
                failures[index] += 1
                log.error(
                    "query died; it is started again", piece=running.piece.name, reason=reason
                )
                if self._stopping.wait(Backoff(0.1, 5.0).delay_s(failures[index])):
                    return
                running.start()
            if self._once and not any(running.active for running in pieces):
                return

    def _drain_for_ever(self) -> None:
        while not self._stopping.wait(0.05):
            self._drain_once()

    def _drain_once(self) -> None:
        for name, (_, drain) in self._drains.items():
            try:
                drain.try_once(self._stopping)
            except PenstockError as error:
                log.error("drain fails", sink=name, error=str(error))
                self._stopping.wait(1.0)
            except Exception as error:
                log.exception("drain fails", error, sink=name)
                self._stopping.wait(1.0)

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
        if self._drainer.is_alive():
            self._drainer.join(timeout=5.0)
        for running in self._pieces:
            try:
                running.stop()
            except Exception as error:  # Spark may be gone already
                log.warning("query does not stop", error=logs.describe(error))
        if self._spark is not None:
            self._spark.stop()

    def lag(self) -> int:
        """Messages in the topics that this flow reads that are not settled yet."""
        if self._receipts is None:
            return 0
        behind = 0
        for running in self._pieces:
            settled = running.coordinator.decisions.frontiers
            for source in running.piece.sources:
                for part in self._log.describe(TopicName.parse(source.topic)).partitions:
                    behind += max(0, part.end - settled.get((source.topic, part.partition), 0))
        return behind

    def stats(self) -> dict[str, Any]:
        peers: dict[str, Any] = {}
        sinks: dict[str, Any] = {}
        for running in self._pieces:
            totals = running.coordinator.totals
            for sink in running.piece.components:
                if sink not in running.coordinator.sinks:
                    continue
                holds, drain = self._drains.get(f"{running.piece.name}/{sink}", (None, None))
                rows = totals.rows.get(sink, 0)
                peers[sink] = {
                    "in": rows,
                    "out": 0,
                    "err": totals.errors.get(sink, 0),
                    "send": rows,
                    "recv": 0,
                    "recv_bytes": 0,
                    "connections": 0,
                    "refused": 0,
                }
                sinks[sink] = {
                    "valve": "open" if holds is None else holds.valve(sink),
                    "parked": 0 if drain is None else drain.parked,
                    "error": totals.last_error.get(sink),
                }
        return {
            "peers": peers,
            "partitions": {},
            "rss_bytes": _rss_bytes(),
            "engine": {
                "lag": self.lag(),
                "sinks": sinks,
                "pieces": {
                    one.piece.name: {
                        "transactions": one.coordinator.totals.transactions,
                        "last_batch_s": one.last_batch_s,
                        "statuses": one.coordinator.totals.statuses,
                    }
                    for one in self._pieces
                },
            },
        }


def _offsets(topic: TopicName, offsets: Mapping[int, int]) -> str:
    return orjson.dumps({f"{topic}/{part}": at for part, at in offsets.items()}).decode()


def _rss_bytes() -> int:
    with Path("/proc/self/statm").open("rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
