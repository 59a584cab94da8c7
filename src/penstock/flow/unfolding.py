"""Unfolds the graph below a piece's sources into places and the routes between them.

A component becomes one place for each copy and each form in which rows come to it, so that a place alone
tells what a row is and whose copy. Flows are small; MAX_PLACES keeps out those that are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.config.flow import DEFAULT_ROUTE, Component
from penstock.errors import ConfigError
from penstock.flow.graph import Graph, Link
from penstock.flow.plan import Copy, Cut, Form, Hashed, Pick, Place, Route, Source, To, Turn, Vanish
from penstock.limits import MAX_PLACES
from penstock.links.fault import FaultOptions, target_name
from penstock.links.payload import BASE64, CompressorOptions, FormatOptions
from penstock.links.routing import ReplicatorOptions, RouterOptions
from penstock.status import Status

PASSING = frozenset({"link.buffer", "link.demultiplexer"})
"""Links through which rows pass as they are."""

COMPUTING = frozenset({"link.select", "link.sql", "link.python"})
"""Links that decide which columns a value has."""


@dataclass(frozen=True, slots=True)
class Unfolded:
    start: tuple[tuple[str, Route], ...]
    places: tuple[Place, ...]
    components: dict[str, Component]
    arriving: dict[str, Form]  # by cut: the form of what goes there


class Unfolding:
    """One piece's. Call `enter` or `head` once, then `finish`."""

    def __init__(self, graph: Graph, cuts: Mapping[tuple[str, str], Cut]) -> None:
        self._graph = graph
        self._cuts = cuts  # by the two ends of the link that is cut
        self._places: list[Place] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._components: dict[str, Component] = {}
        self._arriving: dict[str, Form] = {}

    def enter(self, sources: Sequence[Source]) -> tuple[tuple[str, Route], ...]:
        """Where the rows of each topic go first."""
        by_topic: dict[str, list[Source]] = {}
        for source in sources:
            self._components[source.entry] = self._graph.nodes[source.entry].component
            by_topic.setdefault(source.topic, []).append(source)
        return tuple((topic, self._shared(topic, found)) for topic, found in by_topic.items())

    def _shared(self, topic: str, sources: list[Source]) -> Route:
        """A topic may be written by several receivers of the flow, and read by any number."""
        writers = [one for one in sources if not self._only_reads(one)]
        readers = [one for one in sources if self._only_reads(one)]
        groups = [[one] for one in readers] + ([writers] if writers else [])
        node = f"topic {topic}"
        found: list[Route] = []
        for group in groups:
            path = (Turn(node, group[0].entry, len(groups)),) if len(groups) > 1 else ()
            routes = [self.below(one.entry, one.form, path) for one in group]
            # What came in by other ways than this flow's receivers goes the way of the first.
            cases = tuple((one.entry, route) for one, route in zip(group, routes, strict=True))
            found.append(
                routes[0] if len(group) == 1 else Pick(node, "peer", None, cases, routes[0])
            )
        return found[0] if len(found) == 1 else Copy(node, tuple(found))

    def _only_reads(self, source: Source) -> bool:
        return self._components[source.entry].module == "receiver.topic"

    def below(self, node: str, form: Form, path: tuple[Turn, ...] = ()) -> Route:
        """Out of a node, to everything it is connected with."""
        links = self._graph.outputs(node)
        if len(links) == 1:
            return self._into(links[0], form, path)
        turns = [Turn(node, link.target, len(links)) for link in links]
        routes = [
            self._into(link, form, (*path, turn)) for link, turn in zip(links, turns, strict=True)
        ]
        return Copy(node, tuple(routes)) if routes else Vanish()

    def head(self, component: Component, form: Form, after: Form) -> Route:
        """Into the link with state that a piece begins with, and to all that is below it."""
        self._components[component.name] = component
        index, _ = self._place("link", component.name, form, (), into=after)
        self._complete(index, (self.below(component.name, after),))
        for status in (Status.TIMED_OUT, Status.THROTTLED):
            self._end(component.name, form, (), status)
        return To(index)

    def finish(self, start: tuple[tuple[str, Route], ...]) -> Unfolded:
        return Unfolded(start, tuple(self._places), self._components, self._arriving)

    def _into(self, link: Link, form: Form, path: tuple[Turn, ...]) -> Route:
        cut = self._cuts.get((link.source, link.target))
        if cut is not None:
            return self._to_cut(cut, form, path)
        name = link.target
        component = self._graph.nodes[name].component
        self._components[component.name] = component
        if component.is_end:
            return self._to_sink(component, form, path)
        options = component.options
        if component.module in PASSING or component.module == "link.multiplexer":
            return self.below(name, form, path)
        if isinstance(options, RouterOptions):
            return self._routed(name, options, form, path)
        if isinstance(options, ReplicatorOptions):
            return self._replicated(name, options, form, path)
        return self._to_link(name, component, form, path)

    # --- Routes --------------------------------------------------------------------------------

    def _routed(
        self, name: str, options: RouterOptions, form: Form, path: tuple[Turn, ...]
    ) -> Route:
        cases = []
        other: Route | None = None
        for link in self._graph.outputs(name):
            route = self._into(link, form, path)
            cases += [(key, route) for key in link.routes if key != DEFAULT_ROUTE]
            other = route if DEFAULT_ROUTE in link.routes else other
        if other is None:
            other = To(self._end(name, form, path, Status.UNROUTABLE))
        return Pick(name, "meta", options.routing_key, tuple(cases), other)

    def _replicated(
        self, name: str, options: ReplicatorOptions, form: Form, path: tuple[Turn, ...]
    ) -> Route:
        links = self._graph.outputs(name)
        count = len(links) if options.mode == "each" else options.replicas or 1
        if count >= len(links):
            return self.below(name, form, path)
        targets = []
        for link in links:
            turns = (Turn(name, link.target, count),) if count > 1 else ()
            name_of = target_name(self._graph.nodes[link.target].component)
            targets.append((name_of, self._into(link, form, (*path, *turns))))
        return Hashed(name, options.hash_key, count, tuple(targets))

    # --- Places --------------------------------------------------------------------------------

    def _to_cut(self, cut: Cut, form: Form, path: tuple[Turn, ...]) -> Route:
        known = self._arriving.setdefault(cut.sink, form)
        if known.key != form.key:
            raise different_kinds(cut.node, known, form)
        return To(self._place("cut", cut.sink, form, path)[0])

    def _to_sink(self, component: Component, form: Form, path: tuple[Turn, ...]) -> Route:
        wanted = Form(component.codec)
        if component.codec is None or wanted.key == form.key:
            return To(self._place("sink", component.name, form, path)[0])
        index, new = self._place("encode", component.name, form, path, into=wanted)
        if new:
            sink = To(self._place("sink", component.name, wanted, path)[0])
            self._complete(index, (sink,))
        return To(index)

    def _to_link(
        self, name: str, component: Component, form: Form, path: tuple[Turn, ...]
    ) -> Route:
        after = _after(component, form)
        index, new = self._place("link", name, form, path, into=after)
        if new:
            if component.module == "link.fanout":
                outputs = self._graph.outputs(name)
                routes = tuple(self._into(link, after, path) for link in outputs)
            else:
                routes = (self.below(name, after, path),)
            self._complete(index, routes)
        return To(index)

    def _complete(self, index: int, routes: tuple[Route, ...]) -> None:
        place = self._places[index]
        invalid = self._end(place.node, place.form, place.path, Status.INVALID)
        options = self._components[place.node].options
        ends = options.status if isinstance(options, FaultOptions) else Status.FAILED
        failed = self._end(place.node, place.form, place.path, ends)
        self._places[index] = replace(place, routes=routes, invalid=invalid, failed=failed)

    def _end(self, node: str, form: Form, path: tuple[Turn, ...], status: Status) -> int:
        return self._place("end", node, form, path, status=status)[0]

    def _place(
        self,
        kind: Literal["link", "encode", "sink", "cut", "end"],
        node: str,
        form: Form,
        path: tuple[Turn, ...],
        *,
        status: Status | None = None,
        into: Form | None = None,
    ) -> tuple[int, bool]:
        """The place's index, and whether it is new."""
        key = (kind, node, form.key, path, status)
        if key in self._known:
            return self._known[key], False
        index = len(self._places)
        if index >= MAX_PLACES:
            raise ConfigError(
                f"the flow copies messages in more than {MAX_PLACES} different ways; "
                "cut it in two with a topic between"
            )
        self._known[key] = index
        self._places.append(Place(index, kind, node, form, path, status=status, into=into))
        return index, True


def different_kinds(node: str, one: Form, other: Form) -> ConfigError:
    """A link that remembers reads all that comes to it in one way."""
    return ConfigError(
        f"{node} is given payloads of different kinds ({one} and {other}); bring them to one codec "
        "with link.encode before it"
    )


def _after(component: Component, form: Form) -> Form:
    """The form in which rows leave a link."""
    options = component.options
    if component.module in COMPUTING:
        return form.computed(component.name)
    if isinstance(options, CompressorOptions):
        packs = options.direction == "compress"
        return form.wrapped(options.algorithm) if packs else form.unwrapped(options.algorithm)
    if isinstance(options, FormatOptions):
        stage = options.stage()
        if stage is not None:
            if not stage.available:
                raise ConfigError(f"{component.name}: the codec {stage.name} is not there yet")
            return Form(stage)
        encodes = component.module == "link.encode"
        return form.wrapped(BASE64) if encodes else form.unwrapped(BASE64)
    return form
