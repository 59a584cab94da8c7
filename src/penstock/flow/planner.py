"""From a flow's graph to pieces: which queries run, what each reads, and where it is cut.

- A link with state is the head of a piece of its own. If all that comes to it comes from receivers that feed
  nothing else, the piece reads their topics. Otherwise what comes to it is cut off by an internal topic.
- The other receivers are grouped: those that share anything below them are read by one piece, in one scan.
- What lies below two heads belongs to both pieces; a sink may have several coordinators.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from penstock.config.flow import Component
from penstock.config.names import check_topic, name_from
from penstock.errors import ConfigError
from penstock.flow.graph import Graph, into_peer
from penstock.flow.plan import CUT, Cut, Form, Piece, Plan, Retry, Source
from penstock.flow.unfolding import Unfolded, Unfolding, different_kinds
from penstock.links.fault import source_name
from penstock.links.pacing import BufferOptions
from penstock.links.routing import CopyOptions

STATEFUL = frozenset(
    {"link.aggregate", "link.dedupe", "link.join", "link.throttler", "link.window"}
)
KEEPING = frozenset({"link.dedupe", "link.throttler"})
"""Links with state that let events through as they are."""


def plan(graph: Graph) -> Plan:
    """The pieces of a flow. ConfigError where it cannot run as it is written."""
    return _Planner(graph).plan()


@dataclass(frozen=True, slots=True)
class _Planned:
    piece: Piece
    arriving: dict[str, Form]  # by cut: the form of what goes there


@dataclass(frozen=True, slots=True)
class _Head:
    """A link with state: the receivers it reads directly, and the cuts before it."""

    node: str
    direct: tuple[str, ...]
    cuts: dict[str, Cut]  # by the node that feeds it


class _Planner:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._flow = graph.flow
        self._topics = {one.topic for one in self._flow.components.values() if one.topic}
        self._topics.add(self._flow.dead_letter)
        # Only what a receiver feeds is planned; a flow that was checked has nothing else.
        self._sources = [
            name
            for name in graph.order
            if graph.nodes[name].component.is_source and graph.outputs(name)
        ]
        self._heads = {
            name: self._head(name)
            for name in graph.order
            if graph.nodes[name].component.module in STATEFUL
        }

    def plan(self) -> Plan:
        for one in self._flow.components.values():
            if one.kind is None:
                raise ConfigError(f"{one.name}: plugins cannot run in a flow yet")
        arriving: dict[str, Form] = {}
        pieces = []
        for group in self._groups():
            pieces.append(self._note(self._rows(group), arriving))
        for head in self._heads.values():  # in the order of the data
            pieces.append(self._note(self._stateful(head, arriving), arriving))
        cuts = tuple(cut for head in self._heads.values() for cut in head.cuts.values())
        return Plan(self._flow.name, tuple(pieces), _distinct(cuts))

    def _note(self, planned: _Planned, arriving: dict[str, Form]) -> Piece:
        for cut in planned.piece.cuts:
            form = planned.arriving[cut.sink]
            known = arriving.setdefault(cut.sink, form)
            if known.key != form.key:
                raise different_kinds(cut.node, known, form)
        return planned.piece

    # --- Where the flow is cut -----------------------------------------------------------------

    def _head(self, node: str) -> _Head:
        feeders = [link.source for link in self._graph.inputs(node)]
        direct = [name for name in feeders if self._feeds_only(name, node)]
        joins = self._graph.nodes[node].component.module == "link.join"
        cuts: dict[str, Cut] = {}
        for name in feeders:
            if name not in direct:
                shared = next(iter(cuts.values()), None)
                cuts[name] = self._cut(node, name) if joins or shared is None else shared
        return _Head(node, tuple(direct), cuts)

    def _feeds_only(self, name: str, node: str) -> bool:
        """Whether a receiver's topic holds what comes to the node, and nothing else."""
        component = self._graph.nodes[name].component
        others = [one for one in self._flow.components.values() if one.topic == component.topic]
        outputs = [link.target for link in self._graph.outputs(name)]
        return name in self._sources and outputs == [node] and len(others) == 1

    def _cut(self, node: str, feeder: str) -> Cut:
        joins = self._graph.nodes[node].component.module == "link.join"
        entry = source_name(self._graph.nodes[feeder].component) if joins else node
        parts = [self._flow.name, node, *([feeder] if joins else [])]
        topic = name_from(".".join(parts))
        while topic in self._topics:
            topic = name_from(f"{topic}.cut")
        self._topics.add(check_topic(topic))
        return Cut(f"{CUT}{node}:{topic}", topic, node, entry)

    # --- Pieces --------------------------------------------------------------------------------

    def _groups(self) -> list[list[str]]:
        """Receivers that share a topic, or anything below them, together; in the file's order."""
        taken = {name for head in self._heads.values() for name in head.direct}
        groups: list[tuple[list[str], set[str]]] = []
        for name in self._sources:
            if name in taken:
                continue
            shared = self._reach(name) | {f"topic {self._graph.nodes[name].component.topic}"}
            members = [name]
            for group in [one for one in groups if one[1] & shared]:
                members = group[0] + members
                shared |= group[1]
                groups.remove(group)
            groups.append((members, shared))
        return [members for members, _ in groups]

    def _reach(self, name: str) -> set[str]:
        """What lies below, up to links with state."""
        found: set[str] = set()
        waiting = [link.target for link in self._graph.outputs(name)]
        while waiting:
            other = waiting.pop()
            if other not in found and other not in self._heads:
                found.add(other)
                waiting += [link.target for link in self._graph.outputs(other)]
        return found

    def _rows(self, receivers: list[str]) -> _Planned:
        unfolding = Unfolding(self._graph, self._cuts_by_link())
        sources = [self._source(name) for name in receivers]
        start = unfolding.enter(sources)
        return self._planned(receivers[0], sources, None, unfolding.finish(start))

    def _stateful(self, head: _Head, arriving: dict[str, Form]) -> _Planned:
        component = self._graph.nodes[head.node].component
        sources = [self._source(name) for name in head.direct]
        sources += [
            Source(cut.topic, cut.entry, arriving[cut.sink], internal=True)
            for cut in _distinct(head.cuts.values())
        ]
        if component.module == "link.join":  # the one that is named first is the left one
            feeders = [link.source for link in self._graph.inputs(head.node)]
            names = [source_name(self._graph.nodes[name].component) for name in feeders]
            sources.sort(key=lambda one: names.index(one.entry))
        else:
            _check_forms(component, sources)
        form = sources[0].form
        after = form if component.module in KEEPING else form.computed(head.node)
        unfolding = Unfolding(self._graph, self._cuts_by_link())
        start = ((head.node, unfolding.head(component, form, after)),)
        return self._planned(head.node, sources, component, unfolding.finish(start))

    def _planned(
        self, name: str, sources: list[Source], head: Component | None, found: Unfolded
    ) -> _Planned:
        ends = {place.node for place in found.places if place.kind in ("sink", "cut")}
        known = {cut.sink: cut for one in self._heads.values() for cut in one.cuts.values()}
        cuts = tuple(known[sink] for sink in known if sink in ends)
        sinks = [one for one in self._flow.components if one in ends]
        piece = Piece(
            name=name,
            flow=self._flow.name,
            sources=tuple(sources),
            head=head,
            start=found.start,
            places=found.places,
            components=found.components,
            sinks=(*sinks, *(cut.sink for cut in cuts)),
            cuts=cuts,
            retries={sink: retry for sink in sinks if (retry := self._retry(sink))},
            timeouts_s={
                sink: timeout_s
                for sink in sinks
                if (timeout_s := self._timeout_s(sink)) is not None
            },
            aside=frozenset() if head is None else self._aside(head.name),
        )
        return _Planned(piece, found.arriving)

    def _aside(self, head: str) -> frozenset[str]:
        below = [self._graph.nodes[one].component.name for one in self._graph.downstream(head)]
        return frozenset(self._flow.components) - {head, *below}

    def _source(self, name: str) -> Source:
        component = self._graph.nodes[name].component
        assert component.topic is not None, f"receiver {name} has no topic"
        return Source(component.topic, name, Form(component.codec))

    def _cuts_by_link(self) -> dict[tuple[str, str], Cut]:
        return {
            (feeder, head.node): cut
            for head in self._heads.values()
            for feeder, cut in head.cuts.items()
        }

    def _retry(self, sink: str) -> Retry | None:
        """Of the nearest link.buffer above, also one that stands before a cut."""
        waiting = [name for name in (sink, into_peer(sink)) if name in self._graph.nodes]
        seen = set(waiting)
        for name in waiting:  # which grows: breadth first, so that the nearest is found first
            options = self._graph.nodes[name].component.options
            if isinstance(options, BufferOptions):
                return Retry(
                    buffer=name,
                    max_retry=options.max_retry,
                    backoff_min_s=options.backoff_min_s,
                    backoff_max_s=options.backoff_max_s,
                    timeout_s=options.timeout_s,
                )
            above = [link.source for link in self._graph.inputs(name)]
            waiting += [one for one in above if one not in seen]
            seen.update(above)
        return None

    def _timeout_s(self, sink: str) -> float | None:
        """How long the copying links above it wait, also those before a cut. None: for ever.

        Of several above each other, the least patient counts; of several ways to the sink, the most patient:
        what waits there does not say which way it came.
        """
        waits_s: dict[str, float] = {}  # below each node
        for name in self._graph.order:
            options = self._graph.nodes[name].component.options
            own_s = options.timeout_s if isinstance(options, CopyOptions) else None
            above = [waits_s[link.source] for link in self._graph.inputs(name)]
            waits_s[name] = min(max(above, default=inf), inf if own_s is None else own_s)
        longest_s = waits_s[into_peer(sink) if into_peer(sink) in waits_s else sink]
        return None if longest_s == inf else longest_s


def _check_forms(head: Component, sources: list[Source]) -> None:
    for source in sources:
        if source.form.key != sources[0].form.key:
            raise different_kinds(head.name, sources[0].form, source.form)


def _distinct(cuts: Iterable[Cut]) -> tuple[Cut, ...]:
    return tuple({cut.sink: cut for cut in cuts}.values())
