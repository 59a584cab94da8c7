"""Faults at work: sinks that fail, and the nodes that stand before other components."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext

from penstock.config.flow import Component, Edge, Flow
from penstock.config.registry import Kind, Shape
from penstock.flow.topics import make_topic, topic_beside
from penstock.guarantee import Guarantee
from penstock.links.fault import MODULE, FaultOptions, source_name
from penstock.log.embedded import EmbeddedLog
from penstock.sinks.interface import Poisoned, Prepared, Sink, SinkTask, SinkUnavailable, Txn
from penstock.sinks.registry import make_sink
from penstock.sinks.topic import TopicSink
from penstock.status import Status
from penstock.testing.faults import Fault, Mask, Tickets, places

_NODE = " fault "
"""Between a component's name and a number: the spaces keep it apart from components' names."""


def node_at(node: str) -> str:
    """The component that the node of a fault stands before."""
    return node.partition(_NODE)[0]


def is_sink(flow: Flow, name: str) -> bool:
    """Whether a fault there is one of a destination. A peer that also sends has its faults there."""
    return flow.components[name].is_end and not flow.outputs(name)


def tickets(folder: Path, number: int, fault: Fault) -> Tickets:
    return Tickets(folder / f"fault.{number}", fault.times)


def crash_rules(faults: Sequence[Fault], folder: Path) -> list[dict[str, Any]]:
    """What kills the engine, as the variable `PENSTOCK_FAULTS` has it."""
    rules = []
    for number, fault in enumerate(faults):
        if fault.kills_engine:
            match = {"target": fault.at} if fault.step == "committing" else {}
            for turn in range(fault.times or 1):
                once = str(folder / f"crash.{number}.{turn}")
                point = f"transaction.{fault.step}"
                rules.append({"point": point, "action": "kill", "once": once, "match": match})
    return rules


# --- Links and receivers ------------------------------------------------------------------------


def with_faults(flow: Flow, faults: Sequence[Fault], folder: Path) -> Flow:
    """The flow with a node before each link, and behind each receiver, that has a fault. A join has one before
    each of its inputs, since it tells them apart."""
    components, edges = dict(flow.components), list(flow.edges)
    for number, fault in enumerate(faults):
        at = fault.at
        if fault.kills_engine or is_sink(flow, at):
            continue
        if flow.components[at].is_source:
            node = _node(f"{at}{_NODE}{number}", fault, tickets(folder, number, fault), behind=at)
            components[node.name] = node
            edges = [replace(e, source=node.name) if e.source == at else e for e in edges]
            edges.append(Edge(at, node.name))
            continue
        feeders = dict.fromkeys(edge.source for edge in edges if edge.target == at)
        joins = flow.components[at].module == "link.join"
        for turn, group in enumerate([[one] for one in feeders] if joins else [list(feeders)]):
            behind = source_name(components[group[0]]) if len(group) == 1 else ""
            name = f"{at}{_NODE}{number}.{turn}"
            components[name] = _node(name, fault, tickets(folder, number, fault), behind=behind)
            edges = [
                replace(e, target=name) if e.target == at and e.source in group else e
                for e in edges
            ]
            edges.append(Edge(name, at))
    return replace(flow, components=components, edges=tuple(edges))


def _node(name: str, fault: Fault, at: Tickets, behind: str) -> Component:
    status = Status.TIMED_OUT if fault.kind == "time_out" else Status.FAILED
    strikes = Strike(fault, at)
    options = FaultOptions(
        strikes=strikes, status=status, reason=fault.said, before=fault.at, behind=behind
    )
    return Component(name, Kind.LINK, MODULE, options, (), None, None, None, Shape(), True)


@dataclass(frozen=True, slots=True)
class Strike:
    """Which of a batch's events a fault at a link ends; or the link is slow, or its process dies."""

    fault: Fault
    tickets: Tickets

    def __call__(self, events: pa.RecordBatch) -> Mask:
        fault, count = self.fault, events.num_rows
        if fault.kind in ("slow", "crash"):
            _disturb(fault, self.tickets)
            return np.zeros(count, np.bool_)
        struck = np.ones(count, np.bool_) if fault.match is None else fault.match.of(events)
        wanted = [place for place, one in zip(places(events), struck, strict=True) if one]
        struck[struck] = self.tickets.take(wanted)
        return struck


def _disturb(fault: Fault, at: Tickets) -> None:
    if at.take([_attempt() if fault.kind == "crash" else _job()]).all():
        if fault.kind == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(fault.seconds)


def _job() -> str:
    """Names the job that this task belongs to. Numbers of jobs begin anew with the driver."""
    context = TaskContext.get()
    return f"{os.getppid()}-{context.stageId()}" if context else "here"


def _attempt() -> str:
    context = TaskContext.get()
    return f"{_job()}-{context.taskAttemptId()}" if context else "here"


# --- Sinks --------------------------------------------------------------------------------------


def collected_in(flow: Flow, sink: str) -> str:
    """The topic that holds what a sink that is not real was given."""
    return str(topic_beside(flow, sink, "collected"))


@dataclass(slots=True)
class SinkMaker:
    """Makes the sinks of a flow under test: ones that collect, unless they are to be real."""

    flow: Flow
    real: frozenset[str]
    faults: Sequence[Fault]
    folder: Path
    made: list[Sink] = field(default_factory=list)

    def __call__(self, component: Component, data_dir: Path) -> Sink:
        sink = self._sink(component, data_dir)
        here = tuple(
            (one, tickets(self.folder, number, one))
            for number, one in enumerate(self.faults)
            if one.at == component.name and not one.kills_engine
        )
        found = FaultySink(sink, here) if here and is_sink(self.flow, component.name) else sink
        self.made.append(found)
        return found

    def _sink(self, component: Component, data_dir: Path) -> Sink:
        if component.name in self.real:
            return make_sink(component, data_dir)
        topic = topic_beside(self.flow, component.name, "collected")
        options = self.flow.topic_options(str(topic)).model_copy(update={"partitions": 1})
        make_topic(EmbeddedLog(data_dir), topic, options)
        return TopicSink(component.name, str(topic), data_dir, keeps_origin=True)

    def close(self) -> None:
        for sink in self.made:
            sink.close()


@dataclass(frozen=True, slots=True)
class FaultySink:
    """A sink, and what goes wrong with it."""

    sink: Sink
    faults: tuple[tuple[Fault, Tickets], ...]

    @property
    def name(self) -> str:
        return self.sink.name

    @property
    def guarantee(self) -> Guarantee:
        return self.sink.guarantee

    def task(self, txn: Txn, partition: int, attempt: int) -> SinkTask:
        for fault, at in self.faults:
            if fault.kind in ("slow", "crash"):
                _disturb(fault, at)
            elif fault.match is None and at.take([_job()]).all():
                raise SinkUnavailable(fault.said)
        refusing = tuple(one for one in self.faults if one[0].match is not None)
        task = self.sink.task(txn, partition, attempt)
        return _RefusingTask(task, refusing) if refusing else task

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        self.sink.commit(txn, tokens)

    def abort(self, txn: Txn) -> None:
        self.sink.abort(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return self.sink.uncommitted(coordinator)

    def probe(self) -> None:
        for fault, _ in self.faults:
            down = fault.kind in ("fail", "time_out") and fault.match is None
            if down and fault.times is None:
                raise SinkUnavailable(fault.said)
        self.sink.probe()

    def close(self) -> None:
        self.sink.close()


@dataclass(slots=True)
class _RefusingTask:
    task: SinkTask
    faults: tuple[tuple[Fault, Tickets], ...]

    def write(self, events: pa.RecordBatch) -> None:
        for fault, at in self.faults:
            struck = np.flatnonzero(Strike(fault, at)(events))
            if len(struck):
                raise Poisoned(fault.said, dict.fromkeys(map(int, struck), fault.said))
        self.task.write(events)

    def prepare(self) -> Prepared:
        return self.task.prepare()

    def abort(self) -> None:
        self.task.abort()
