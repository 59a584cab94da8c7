"""The pipeline: which component feeds which, and whether that makes sense."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.config.cycles import find_cycles, reachable
from penstock.config.flow import DEFAULT_ROUTE, Component, Edge
from penstock.config.located import Mapping, Node, Scalar, Sequence, describe, is_null
from penstock.config.model import WiringOptions
from penstock.config.problems import Mark, Problems, quoted
from penstock.config.reading import read_options, refuse_secrets


@dataclass(frozen=True, slots=True)
class Wires:
    """The edges, each with its place in the file, and the components the pipeline mentions."""

    edges: dict[Edge, Mark]
    entries: dict[str, Mark]  # those with an entry of their own
    faulty: set[str]  # those whose entry has a mistake: what is missing there may be meant

    def mentioned(self) -> set[str]:
        ends = {name for edge in self.edges for name in (edge.source, edge.target)}
        return ends | set(self.entries) | self.faulty


@dataclass(frozen=True, slots=True)
class Defined:
    """What a component needs to be wired: its definition may itself be wrong (None)."""

    mark: Mark
    component: Component | None


def read_pipeline(node: Node | None, defined: dict[str, Defined], problems: Problems) -> Wires:
    wires = Wires({}, {}, set())
    if node is None or is_null(node):
        return wires
    if not isinstance(node, Mapping):
        problems.add(node.mark, f"`pipeline`: expected a mapping, found {describe(node)}")
        return wires
    reader = _PipelineReader(defined, wires, problems)
    for name, entry in node.entries.items():
        reader.read(name, entry.key.mark, entry.value)
    return wires


class _PipelineReader:
    def __init__(self, defined: dict[str, Defined], wires: Wires, problems: Problems) -> None:
        self._defined = defined
        self._wires = wires
        self._problems = problems

    def read(self, name: str, mark: Mark, node: Node) -> None:
        known = self._known(name, mark)
        what = f"the pipeline's {quoted(name)}"
        before = len(self._problems)
        refuse_secrets(node, self._problems)
        if read_options(WiringOptions, node, mark, self._problems, what) is None or not known:
            self._wires.faulty.add(name)
            return
        self._wires.entries[name] = mark
        if isinstance(node, Mapping):
            self._wire(name, node)
        if len(self._problems) > before:
            self._wires.faulty.add(name)

    def _wire(self, name: str, node: Mapping) -> None:
        connect, links = node.get("connect"), node.get("links")
        if isinstance(connect, Sequence) and not is_null(links):
            mark = node.entries["links"].key.mark
            self._problems.add(
                mark,
                f"{quoted(name)}: a list in `connect` means `links`, and `links` is here too",
                "keep one of them",
            )
            links = None
        for target, mark in _names(connect):
            self._edge(name, target, mark)
        for other, mark in _names(links):
            if is_null(connect):
                self._edge(name, other, mark)
            else:
                self._edge(other, name, mark, at_source=True)
        routes = node.get("routes")
        if isinstance(routes, Mapping):
            for route, entry in routes.entries.items():
                for target, mark in _names(entry.value):
                    self._edge(name, target, mark, route)
        for target, mark in _names(node.get("default")):
            if isinstance(routes, Mapping) and DEFAULT_ROUTE in routes.entries:
                key = node.entries["default"].key.mark
                self._problems.add(key, f"{quoted(name)} has two default routes; give only one")
            else:
                self._edge(name, target, mark, DEFAULT_ROUTE)

    def _edge(
        self,
        source: str,
        target: str,
        mark: Mark,
        route: str | None = None,
        *,
        at_source: bool = False,
    ) -> None:
        if not self._known(source if at_source else target, mark):
            return
        edge = Edge(source, target, route)
        first = self._wires.edges.setdefault(edge, mark)
        # The two ends of an edge may both name it; one end may not name it twice.
        if first != mark and not at_source and first.line == mark.line:
            self._problems.add(mark, f"{quoted(source)} goes to {quoted(target)} twice")

    def _known(self, name: str, mark: Mark) -> bool:
        if name in self._defined:
            return True
        close = self._problems.suggest(name, list(self._defined))
        self._problems.add(mark, f"there is no component {quoted(name)}", close)
        return False


def _names(node: Node | None) -> Iterable[tuple[str, Mark]]:
    if isinstance(node, Scalar) and not node.is_null and not node.broken:
        return [(node.text, node.mark)]
    if isinstance(node, Sequence):
        return [pair for item in node.items for pair in _names(item)]
    return []


def check_wires(wires: Wires, defined: dict[str, Defined], problems: Problems) -> None:
    """Whether every component has the inputs and outputs that it takes, and can be reached."""
    mentioned = wires.mentioned()
    inputs: dict[str, list[tuple[Edge, Mark]]] = {name: [] for name in defined}
    outputs: dict[str, list[tuple[Edge, Mark]]] = {name: [] for name in defined}
    for edge, mark in wires.edges.items():
        outputs[edge.source].append((edge, mark))
        inputs[edge.target].append((edge, mark))
    for name, one in defined.items():
        if name not in mentioned:
            _check_unused(name, one, bool(wires.entries), problems)
        elif one.component is not None and name not in wires.faulty:
            place = wires.entries.get(name, one.mark)
            _check_routes(one.component, place, outputs[name], problems)
            _check_inputs(one.component, place, inputs[name], problems)
            _check_outputs(one.component, place, outputs[name], problems)
    _check_cycles(wires, defined, problems)
    _check_reachable(wires, defined, inputs, problems)


def _check_unused(name: str, one: Defined, piped: bool, problems: Problems) -> None:
    if one.component is None:
        return  # it may have been meant as something that need not be there
    if one.component.is_source:
        if piped:
            hint = f"to only fill its topic, write `{name}: {{}}` there"
            problems.add(one.mark, f"{quoted(name)} is not in the pipeline", hint)
        return
    problems.add(one.mark, f"{quoted(name)} is not in the pipeline", "connect it, or remove it")


def _check_routes(
    one: Component, place: Mark, outputs: list[tuple[Edge, Mark]], problems: Problems
) -> None:
    if one.kind is None:
        return
    if one.shape.routed:
        for edge, mark in outputs:
            if edge.route is None:
                message = f"{quoted(one.name)} is a router: it goes to {quoted(edge.target)}"
                problems.add(mark, f"{message} without a route", "use `routes`")
        if not outputs:
            problems.add(place, f"the router {quoted(one.name)} has no `routes`")
        return
    for edge, mark in outputs:
        if edge.route is not None:
            hint = "use `connect` or `links`, or `module: link.router`"
            problems.add(mark, f"{quoted(one.name)} is no router: it takes no routes", hint)
            return


def _check_inputs(
    one: Component, place: Mark, inputs: list[tuple[Edge, Mark]], problems: Problems
) -> None:
    low, high = one.shape.min_inputs, one.shape.max_inputs
    sources = {edge.source: mark for edge, mark in reversed(inputs)}
    if high == 0 and inputs:
        for source, mark in sources.items():
            message = f"{quoted(one.name)} is a receiver: nothing can go into it"
            problems.add(mark, f"{message} ({quoted(source)} does)")
    elif high is not None and len(sources) > high:
        problems.add(place, f"{quoted(one.name)} takes {high} inputs, not {len(sources)}")
    elif len(sources) < low:
        if not sources:
            problems.add(place, f"nothing goes into {quoted(one.name)}: no `connect` names it")
        else:
            problems.add(place, f"{quoted(one.name)} needs {low} inputs, not {len(sources)}")


def _check_outputs(
    one: Component, place: Mark, outputs: list[tuple[Edge, Mark]], problems: Problems
) -> None:
    low, high = one.shape.min_outputs, one.shape.max_outputs
    if one.shape.routed:
        return
    if high == 0 and outputs:
        for edge, mark in outputs:
            message = f"{quoted(one.name)} is a sink: nothing comes out of it"
            problems.add(mark, f"{message} (it is connected to {quoted(edge.target)})")
    elif high is not None and len(outputs) > high:
        hint = "put a link.multiplexer between to copy, or a link.router to choose"
        problems.add(
            outputs[high][1],
            f"{quoted(one.name)} ({one.module}) goes to one component, not {len(outputs)}",
            hint,
        )
    elif len(outputs) < low:
        message = f"{quoted(one.name)} ({one.module}) goes nowhere"
        problems.add(place, message, "give it a `connect`")


def _check_cycles(wires: Wires, defined: dict[str, Defined], problems: Problems) -> None:
    ahead: dict[str, list[str]] = {name: [] for name in defined}
    for edge in wires.edges:
        target = defined[edge.target].component
        # What goes into a peer leaves the flow there: an answer is no cycle. Nothing may go into a
        # receiver at all, which has been said.
        if target is None or not (target.is_end or target.is_source):
            ahead[edge.source].append(edge.target)
    marks = {(edge.source, edge.target): mark for edge, mark in wires.edges.items()}
    for cycle in find_cycles(ahead):
        last, first = cycle[-1], cycle[0]
        mark = marks[last, first]
        path = " → ".join([*cycle, first])
        problems.add(mark, f"a cycle: {path}", "messages would go round for ever")


def _check_reachable(
    wires: Wires,
    defined: dict[str, Defined],
    inputs: dict[str, list[tuple[Edge, Mark]]],
    problems: Problems,
) -> None:
    ahead: dict[str, list[str]] = {name: [] for name in defined}
    for edge in wires.edges:
        ahead[edge.source].append(edge.target)
    sources = [
        name
        for name, one in defined.items()
        if one.component is None  # a definition with a mistake may have been meant as one
        or one.component.is_source
        or (one.component.kind is None and not inputs[name])
    ]
    reached = reachable(sources, ahead)
    cyclic = {name for cycle in find_cycles(ahead) for name in cycle}
    for name, one in defined.items():
        if name not in reached and inputs[name] and name not in cyclic:
            place = wires.entries.get(name, one.mark)
            problems.add(place, f"{quoted(name)} cannot be reached from any receiver")
