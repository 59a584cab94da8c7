"""The graph of a flow: its nodes in the order of the data, and where it branches.

A peer that is used both ways is two nodes, one for each side: what goes into it leaves the flow there, so
an answer to a caller is no cycle, and the graph has none.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from penstock.config.flow import Component, Edge, Flow


@dataclass(frozen=True, slots=True)
class Node:
    """A component, or the receiving side of a peer that is used both ways."""

    name: str
    component: Component

    @property
    def label(self) -> str:
        return self.component.name

    @property
    def module(self) -> str:
        """What it is, for people; the receiving side of a peer is where answers leave."""
        answers = self.name != self.component.name
        return f"{self.component.module} (answers)" if answers else self.component.module


@dataclass(frozen=True, slots=True)
class Link:
    """An edge between nodes. Routes that lead from one node to the same other are one link."""

    source: str
    target: str
    routes: tuple[str, ...]

    @property
    def label(self) -> str:
        return ", ".join(self.routes)


@dataclass(frozen=True, slots=True)
class Branch:
    """One way out of a node that has several, and the ends that lie on it."""

    link: Link
    ends: tuple[str, ...]


class Graph:
    """Nodes and links without cycles. `order` has every node after all that feed it."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.nodes: dict[str, Node] = {}
        both = _used_both_ways(flow)
        for name, component in flow.components.items():
            self.nodes[name] = Node(name, component)
            if name in both:
                self.nodes[into_peer(name)] = Node(into_peer(name), component)
        self.links = _links(flow.edges, both)
        self._ahead: dict[str, list[Link]] = {name: [] for name in self.nodes}
        self._behind: dict[str, list[Link]] = {name: [] for name in self.nodes}
        for link in self.links:
            self._ahead[link.source].append(link)
            self._behind[link.target].append(link)
        self.order = self._sort()

    def outputs(self, name: str) -> list[Link]:
        return self._ahead[name]

    def inputs(self, name: str) -> list[Link]:
        return self._behind[name]

    def sources(self) -> list[str]:
        return [name for name in self.order if not self._behind[name]]

    def ends(self) -> list[str]:
        return [name for name in self.order if not self._ahead[name]]

    def downstream(self, name: str) -> list[str]:
        """Everything that `name` feeds, directly or not, in order."""
        found = {name}
        for other in self.order:
            if any(link.source in found for link in self._behind[other]):
                found.add(other)
        return [other for other in self.order if other in found and other != name]

    def branches(self) -> list[Branch]:
        """Every way out of the nodes that have several."""
        ends = set(self.ends())
        found = []
        for name in self.order:
            if len(self._ahead[name]) < 2:
                continue
            for link in self._ahead[name]:
                below = [link.target, *self.downstream(link.target)]
                found.append(Branch(link, tuple(one for one in below if one in ends)))
        return found

    def _sort(self) -> list[str]:
        waiting = {name: len(links) for name, links in self._behind.items()}
        ready = deque(name for name, count in waiting.items() if count == 0)
        order = []
        while ready:
            name = ready.popleft()
            order.append(name)
            for link in self._ahead[name]:
                waiting[link.target] -= 1
                if waiting[link.target] == 0:
                    ready.append(link.target)
        assert len(order) == len(self.nodes), "a flow that was checked has no cycles"
        return order


def into_peer(name: str) -> str:
    """The node for the receiving side of a peer. A space keeps it apart from components' names."""
    return f"{name} in"


def _used_both_ways(flow: Flow) -> set[str]:
    sources = {edge.source for edge in flow.edges}
    targets = {edge.target for edge in flow.edges}
    return {
        name
        for name, one in flow.components.items()
        if one.is_source and one.is_end and name in sources and name in targets
    }


def _links(edges: tuple[Edge, ...], both: set[str]) -> list[Link]:
    routes: dict[tuple[str, str], list[str]] = {}
    for edge in edges:
        target = into_peer(edge.target) if edge.target in both else edge.target
        known = routes.setdefault((edge.source, target), [])
        if edge.route is not None:
            known.append(edge.route)
    return [Link(source, target, tuple(found)) for (source, target), found in routes.items()]
