"""A flow's plan in words: what each query reads, does and writes, and where the flow is cut and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.config.flow import DEFAULT_ROUTE, Component, Flow
from penstock.config.guarantees import PathGuarantee, path_guarantees
from penstock.config.registry import REGISTRY, Kind
from penstock.flow.graph import Graph
from penstock.flow.plan import Cut, Piece, Plan, Retry
from penstock.flow.planner import plan
from penstock.flow.topics import park_topic
from penstock.links.routing import FanoutOptions, ReplicatorOptions, RouterOptions


@dataclass(frozen=True, slots=True)
class Read:
    topic: str
    entry: str  # the receiver; of a cut, the link that it stands before
    module: str
    form: str  # how its payloads are read
    internal: bool
    to: tuple[str, ...]  # what gets its messages first; several get a copy each


@dataclass(frozen=True, slots=True)
class Step:
    link: str
    module: str
    does: str


@dataclass(frozen=True, slots=True)
class Break:
    """Where what comes so far is put down in a topic for the next query."""

    before: str
    module: str
    topic: str
    why: str


@dataclass(frozen=True, slots=True)
class Write:
    sink: str
    module: str
    guarantee: str
    limited_by: str | None
    reason: str
    when_it_fails: str


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    reads: tuple[Read, ...]
    remembers: str | None  # the link with state that it begins with
    steps: tuple[Step, ...]
    cuts: tuple[Break, ...]
    writes: tuple[Write, ...]
    job: str


@dataclass(frozen=True, slots=True)
class Explanation:
    flow: str
    commit: str
    dead_letter: str
    queries: tuple[Query, ...]
    missing: tuple[str, ...]  # what this version cannot run


def explain(flow: Flow) -> Explanation:
    """ConfigError where the flow cannot run as it is written."""
    graph = Graph(flow)
    planned = plan(graph)
    paths = path_guarantees(flow.components, flow.edges)
    missing = [f"{gap.what} ({gap.component or 'the flow'})" for gap in flow.missing()]
    queries = tuple(_query(graph, planned, piece, paths) for piece in planned.pieces)
    return Explanation(flow.name, flow.commit, flow.dead_letter, queries, tuple(missing))


def _query(graph: Graph, planned: Plan, piece: Piece, paths: list[PathGuarantee]) -> Query:
    flow = graph.flow
    reads = []
    for source in piece.sources:
        module = graph.nodes[source.entry].component.module
        to = [one.target for one in graph.outputs(source.entry)]
        if piece.head is not None:
            to = [piece.head.name]
        targets = tuple(map(_shown, to))
        reads.append(
            Read(source.topic, source.entry, module, str(source.form), source.internal, targets)
        )
    links = [
        one
        for name in graph.order
        if (one := graph.nodes[name].component).kind is Kind.LINK and one.name in piece.components
    ]
    if piece.head is not None:
        links = [piece.head, *(one for one in links if one.name != piece.head.name)]
    steps = tuple(Step(one.name, one.module, _does(graph, planned, one)) for one in links)
    writes = tuple(
        _write(flow, piece, flow.components[name], paths)
        for name in piece.sinks
        if name in piece.components
    )
    return Query(
        piece.name,
        tuple(reads),
        None if piece.head is None else piece.head.name,
        steps,
        tuple(_break(graph, cut) for cut in piece.cuts),
        writes,
        _job(flow, piece),
    )


def _does(graph: Graph, planned: Plan, link: Component) -> str:
    outputs = graph.outputs(link.name)
    targets = _listed(_shown(one.target) for one in outputs)
    options = link.options
    match options:
        case RouterOptions():
            ways = [(key, one.target) for one in outputs for key in one.routes]
            routes = [f"{key} to {_shown(to)}" for key, to in ways if key != DEFAULT_ROUTE]
            other = [_shown(to) for key, to in ways if key == DEFAULT_ROUTE]
            rest = f"to {other[0]}" if other else "ends as unroutable"
            return (
                f"by the meta attribute {options.routing_key}: {', '.join(routes)}; the rest {rest}"
            )
        case FanoutOptions():
            return f"to each in turn of {targets}"
        case ReplicatorOptions() if options.mode == "hash":
            by = f"the meta attribute {options.hash_key}" if options.hash_key else "the payload"
            return f"to {options.replicas or 1} of {targets}, by a hash of {by}"
    if not outputs:
        return "copies to nothing: messages are done here"
    if len(outputs) > 1:
        return f"a copy each to {targets}"
    declared = REGISTRY.find_module(link.module)
    summary = "" if declared is None else declared.summary.rstrip(".")
    return f"{summary[:1].lower()}{summary[1:]}; to {targets}" if summary else f"to {targets}"


def _break(graph: Graph, cut: Cut) -> Break:
    why = "it remembers, so it begins a query of its own, and not all that comes to it is a topic already"
    return Break(cut.node, graph.nodes[cut.node].component.module, cut.topic, why)


def _write(flow: Flow, piece: Piece, sink: Component, paths: list[PathGuarantee]) -> Write:
    # A piece behind a cut reads what others read before it: all that can reach the sink counts.
    weakest = min(
        (one for one in paths if one.sink == sink.name), key=lambda one: one.guarantee, default=None
    )
    promise, reason = sink.options.promise()
    limited_by: str | None = None
    if weakest is not None:
        promise, limited_by, reason = weakest.guarantee, weakest.limited_by, weakest.reason
    fails = _when_it_fails(flow, sink, piece.retries.get(sink.name))
    return Write(sink.name, sink.module, str(promise), limited_by, reason, fails)


def _when_it_fails(flow: Flow, sink: Component, retry: Retry | None) -> str:
    if flow.commit == "atomic":
        return "rolls the batch back at every sink; it is tried again until all agree"
    held = f"holds back only its own branch; what it missed waits in {park_topic(flow, sink.name)}"
    if retry is None:
        return held
    tries = f"{retry.max_retry} {'retry' if retry.max_retry == 1 else 'retries'}"
    return f"{held}, and ends as failed after {tries} ({retry.buffer})"


def _job(flow: Flow, piece: Piece) -> str:
    count = len(piece.sinks)
    ends_at = "sinks and cuts" if piece.cuts else "sinks"
    over = "its sink" if count == 1 else f"its {count} {ends_at}"
    ends = "all of them commit, or none" if flow.commit == "atomic" and count > 1 else ""
    text = f"each micro-batch is one Spark job and one transaction over {over}"
    return f"{text}; {ends}" if ends else text


def _shown(node: str) -> str:
    """The receiving side of a peer is the peer, for people."""
    return node.removesuffix(" in")


def _listed(names: Iterable[str]) -> str:
    found = list(names)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


# --- Words ----------------------------------------------------------------------------------------


def sentences(query: Query) -> Iterator[tuple[str, str]]:
    """What there is to say of a query, in the order of the data: a word, and what follows it."""
    for read in query.reads:
        origin = "cut before" if read.internal else "filled by"
        to = f"a copy each to {_listed(read.to)}" if len(read.to) > 1 else f"to {_listed(read.to)}"
        filled = f"{origin} {read.entry}, {read.module}"
        yield "reads", f"{read.topic} ({filled}); payloads: {read.form}; {to}"
    if query.remembers is not None:
        where = "its state is in Spark's state store, and goes with Spark's checkpoint"
        yield "remembers", f"{query.remembers}: {where}"
    for step in query.steps:
        yield "then", f"{step.link} ({step.module}): {step.does}"
    for cut in query.cuts:
        yield "cut", f"before {cut.before} ({cut.module}), by the topic {cut.topic}: {cut.why}"
    for write in query.writes:
        limit = f", limited by {write.limited_by}: {write.reason}" if write.limited_by else ""
        yield "writes", f"{write.sink} ({write.module}): {write.guarantee}{limit}"
        yield "", f"if it fails, it {write.when_it_fails}"
    yield "job", query.job
