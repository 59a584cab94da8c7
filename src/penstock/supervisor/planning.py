"""From a flow to what each process has to do: which receivers run, on which topics, in which process."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.config.address import Address
from penstock.config.flow import Component, Flow, Missing
from penstock.config.ids import lacks_ids
from penstock.edge.listening import tls_context
from penstock.edge.plan import EdgePlan, ReceiverPlan
from penstock.errors import ConfigError, Unavailable
from penstock.flow.changes import find_changes
from penstock.flow.graph import Graph
from penstock.flow.planner import plan
from penstock.flow.topics import make_topic
from penstock.log.interface import Log
from penstock.log.names import TopicName
from penstock.peers.options import TlsServerOptions
from penstock.supervisor.addresses import Ports


@dataclass(frozen=True, slots=True)
class Runnable:
    """What of a flow this version can run, and what it cannot."""

    receivers: tuple[Component, ...]
    missing: tuple[Missing, ...]
    pipeline: bool  # whether everything behind the receivers can run, and is wanted


def runnable(flow: Flow) -> Runnable:
    """Raises Unavailable if nothing of the flow can run."""
    missing = tuple(flow.missing())
    if flow.system.log.engine != "embedded":
        raise Unavailable(f"log engine {flow.system.log.engine} is not there yet in this version")
    receivers = tuple(
        one
        for one in flow.receivers()
        if one.available and all(stage.available for stage in one.interceptors)
    )
    if not receivers:
        what = ", ".join(f"{gap.what} ({gap.component})" for gap in missing if gap.component)
        because = f"not there yet: {what}" if what else "the flow has none"
        raise Unavailable(f"no receiver of {flow.file} can run in this version: {because}")
    pipeline = flow.system.engine.enabled and not missing and bool(flow.edges)
    return Runnable(receivers, missing, pipeline)


def check_restart(flow: Flow, parts: Runnable) -> None:
    """WouldLose if the flow was edited since it ran last, so that something would be lost."""
    if parts.pipeline:
        find_changes(flow, plan(Graph(flow))).check()


def settle_topics(flow: Flow, receivers: tuple[Component, ...], engine: Log) -> dict[str, int]:
    """Make the receivers' topics, or change them as the flow asks. The partitions of each, by name.

    ConfigError if a topic goes by ids that its receiver cannot give: nothing would ever be stored.
    """
    partitions = {}
    for text in dict.fromkeys(_topic(one) for one in receivers):
        partitions[text] = make_topic(engine, TopicName.parse(text), flow.topic_options(text))
    for one in receivers:
        if engine.config(TopicName.parse(_topic(one))).ids == "producer":
            reason = lacks_ids(one)
            if reason is not None:
                raise ConfigError(f"{one.name}: {reason}; give it another topic")
    return partitions


def edge_plans(
    flow: Flow,
    receivers: tuple[Component, ...],
    partitions: dict[str, int],
    ports: Ports,
    *,
    engine: bool,
) -> list[EdgePlan]:
    """One plan a process, with every address settled. ConfigError if a TLS key cannot be used."""
    for one in receivers:
        tls = getattr(one.options, "tls", None)
        if isinstance(tls, TlsServerOptions):
            tls_context(one.name, tls)
    spread = {one.name: _processes(flow, one, partitions) for one in receivers}
    owners = _owners(receivers, spread)
    spread = {one.name: min(spread[one.name], owners[_topic(one)]) for one in receivers}
    processes = max(spread.values())
    planned = [
        (spread[one.name], _receiver(one, ports, processes > 1, owners[_topic(one)]))
        for one in receivers
    ]
    system = flow.system
    return [
        EdgePlan(
            flow=flow.name,
            data_dir=str(flow.data_dir),
            process=process,
            processes=processes,
            receivers=[plan for count, plan in planned if process < count],
            stop_timeout_s=system.stop_timeout_s,
            max_pending_bytes=system.log.max_pending_bytes,
            log_level=system.log_level,
            log_format=system.log_format,
            engine=engine,
        )
        for process in range(processes)
    ]


def _owners(receivers: tuple[Component, ...], spread: dict[str, int]) -> dict[str, int]:
    """Over how many processes the partitions of each topic are spread.

    One, where extensions write to it: whoever holds a stream must know how far it is durable.
    """
    owners: dict[str, int] = {}
    for one in receivers:
        owners[_topic(one)] = max(owners.get(_topic(one), 1), spread[one.name])
    for one in receivers:
        if one.module == "receiver.connector":
            owners[_topic(one)] = 1
    return owners


def _processes(flow: Flow, one: Component, partitions: dict[str, int]) -> int:
    """How many processes a receiver runs in: each needs a partition of its own to write to."""
    if any(socket.transport == "unix" for socket in one.options.listens()):
        return 1  # a path can be bound once
    return min(flow.system.maxprocs, partitions[_topic(one)])


def _receiver(one: Component, ports: Ports, shared: bool, owners: int) -> ReceiverPlan:
    options = one.options.wire()
    for socket in one.options.listens():
        if isinstance(socket.place, Address) and socket.transport != "unix":
            settled = ports.settle(one.name, socket.transport, socket.place, shared=shared)
            options["bind"] = str(settled)
    return ReceiverPlan(
        name=one.name,
        module=one.module,
        options=options,
        interceptors=[(stage.name, stage.options.wire()) for stage in one.interceptors],
        topic=_topic(one),
        processes=owners,
    )


def _topic(one: Component) -> str:
    assert one.topic is not None, f"receiver {one.name} has no topic"
    return one.topic
