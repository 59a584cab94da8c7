"""A flow that ran, was edited, and is to run again: all but Spark, on real files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from penstock.config import Flow
from penstock.flow.carrying import CarryOn
from penstock.flow.changes import Changes, find_changes
from penstock.flow.deadletters import OURS, DeadLetters
from penstock.flow.decisions import Decision, Decisions
from penstock.flow.graph import Graph
from penstock.flow.parked import Parked
from penstock.flow.planner import plan
from penstock.flow.planrecord import PlanRecord
from penstock.flow.receipts import Receipts
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from tests.config.files import flow_of

COMPONENTS = {
    "web": "{module: receiver.http, params: {bind: 127.0.0.1:7071}}",
    "tcp": "{module: receiver.tcp, params: {bind: 127.0.0.1:7072}}",
    "copy": "{module: link.multiplexer}",
    "keep": "{module: link.filter, params: {condition: 'true'}}",
    "cols": "{module: link.select, params: {columns: [payload]}}",
    "unique": "{module: link.dedupe, params: {keys: [stream]}}",
    "a": "{module: sink.dumper, params: {out: FOLDER/a}}",
    "b": "{module: sink.dumper, params: {out: FOLDER/b}}",
    "again": "{module: sink.topic, params: {topic: orders.again}}",
}


def text_of(pipeline: str, top: str = "name: orders", **more: str) -> str:
    """A flow of the components that the pipeline names. `more` replaces some of them."""
    known = COMPONENTS | more
    names = [name for name in known if f" {name}" in f" {pipeline.translate(_PLAIN)}"]
    lines = "".join(f"  {name}: {known[name]}\n" for name in names)
    return f"{top}\ncomponents:\n{lines}pipeline: {{{pipeline}}}\n"


_PLAIN = str.maketrans("{}[],:", "      ")


class Edited:
    """One data directory, and the flow that ran on it last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = EmbeddedLog(folder / "data")
        (folder / "data").mkdir(mode=0o700, exist_ok=True)

    def flow(self, text: str, file: str = "orders.yaml") -> Flow:
        written = text.replace("FOLDER", str(self.folder))
        (self.folder / file).write_text(written)
        overrides = {"data_dir": str(self.folder / "data")}
        return flow_of(written, path=self.folder / file, overrides=overrides)

    def changes(self, flow: Flow) -> Changes:
        return find_changes(flow, plan(Graph(flow)))

    def starts(self, flow: Flow, *, accept_loss: bool = False) -> PlanRecord:
        """As the engine does before it starts Spark; then the logs that it makes are there, too."""
        planned = plan(Graph(flow))
        for one in flow.components.values():
            if one.topic is not None:
                self._topic(one.topic)
        self._topic(flow.dead_letter)
        for cut in planned.cuts:
            self._topic(cut.topic)
        receipts = Receipts(flow.data_dir, writable=True)
        letters = DeadLetters(flow.data_dir, TopicName.parse(flow.dead_letter))
        carry = CarryOn(
            flow, self.changes(flow), receipts, letters, _nobody, accept_loss=accept_loss
        )
        try:
            record = carry.apply()
        finally:
            letters.close()
            receipts.close()
        for use in record.topics.values():
            self.decisions(use.reader).close()
        return record

    def decisions(self, reader: str) -> Decisions:
        return Decisions(self.folder / "data" / "engine" / reader)

    def decides(
        self,
        reader: str,
        number: int,
        *,
        read: dict[str, int] | None = None,
        owed: Sequence[str] = (),
        token: bytes = b"",
    ) -> None:
        """A batch up to these offsets, finished but for the commits that it owes."""
        log = self.decisions(reader)
        frontiers = {(topic, 0): end for topic, end in (read or {}).items()}
        log.decide(Decision(number, {sink: [token] for sink in owed}, frontiers))
        log.finished(number)
        log.close()

    def holds(
        self, topic: str, count: int, meta: dict[str, str] | None = None, seq: int = 0
    ) -> None:
        self._topic(topic)
        with self.log.appender(TopicName.parse(topic), 0) as appender:
            payloads = [b"message %d" % n for n in range(count)]
            appender.append([Batch.of("web", "till", seq, payloads, meta=meta or {})])

    def parks(self, sink: str, offset: int, seq: int | None = None, **more: str) -> None:
        """The message at this offset of orders.web waits for the sink; once more, with another `seq`. `more` is
        Penstock's own meta."""
        own = {f"{OURS}{name}": value for name, value in more.items()}
        meta = {f"{OURS}at": f"orders.web/0/{offset}", **own}
        self.holds(f"orders.{sink}.park", 1, meta, offset if seq is None else seq)
        receipts = Receipts(self.folder / "data", writable=True)
        waits = Parked.of(sink, "orders.web", 0, np.array([offset]))
        receipts.settle({("orders.web", 0): offset + 1}, [], [waits])
        receipts.close()

    def _topic(self, topic: str) -> None:
        name = TopicName.parse(topic)
        if name not in self.log.topics():
            self.log.create(name, TopicConfig())


def _nobody(frontiers: object, exceptions: bool) -> None:
    """Nobody waits for receipts here."""
