"""Where the nodes of a graph are drawn: columns from left to right, and rows within them.

Layered drawing in three steps: a node's column is one past the furthest of those that feed it; links that
span several columns get a waypoint in each; and columns are put in the order that keeps neighbours
close (a few sweeps of barycentres), which removes most crossings.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from penstock.errors import ConfigError
from penstock.flow.graph import Graph, Link

MAX_PLACES = 5000
"""Nodes and waypoints: past this a drawing helps nobody, and Graphviz does better."""

_SWEEPS = 6


@dataclass(slots=True, eq=False)
class Place:
    """A node in its column, or a waypoint of a link (`node` is None)."""

    column: int
    node: str | None
    ahead: list[Place] = field(default_factory=list)
    behind: list[Place] = field(default_factory=list)
    row: int = 0  # its position in the column, from the top


@dataclass(frozen=True, slots=True)
class Route:
    """A link and the places it goes through, from its source to its target."""

    link: Link
    places: list[Place]


@dataclass(frozen=True, slots=True)
class Layout:
    columns: list[list[Place]]
    routes: list[Route]


def lay_out(graph: Graph) -> Layout:
    column_of = _columns(graph)
    columns: list[list[Place]] = [[] for _ in range(max(column_of.values(), default=-1) + 1)]
    places = {}
    for name in graph.order:
        places[name] = Place(column_of[name], name)
        columns[column_of[name]].append(places[name])
    count = len(places)
    routes = []
    for link in graph.links:
        way = [places[link.source]]
        for column in range(column_of[link.source] + 1, column_of[link.target]):
            way.append(Place(column, None))
            columns[column].append(way[-1])
            count += 1
            if count > MAX_PLACES:
                raise ConfigError(
                    "the flow is too large for this drawing; use --format dot, or mermaid"
                )
        way.append(places[link.target])
        for one, other in pairwise(way):
            one.ahead.append(other)
            other.behind.append(one)
        routes.append(Route(link, way))
    _arrange(columns)
    return Layout(columns, routes)


def _columns(graph: Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in graph.order:
        found[name] = max((found[link.source] + 1 for link in graph.inputs(name)), default=0)
    return found


def _arrange(columns: list[list[Place]]) -> None:
    for column in columns:
        _number(column)
    for sweep in range(_SWEEPS):
        forth = sweep % 2 == 0
        for column in columns if forth else reversed(columns):
            weights = {
                id(place): _centre(place.behind if forth else place.ahead, place.row)
                for place in column
            }
            column.sort(key=lambda place: weights[id(place)])
            _number(column)


def _centre(neighbours: list[Place], otherwise: int) -> float:
    if not neighbours:
        return otherwise
    return sum(place.row for place in neighbours) / len(neighbours)


def _number(column: list[Place]) -> None:
    for row, place in enumerate(column):
        place.row = row
