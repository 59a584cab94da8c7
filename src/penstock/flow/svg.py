"""A flow drawn as SVG: one file, no scripts, no fonts to fetch, readable on light and dark."""

from __future__ import annotations

from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

from penstock.flow.graph import Graph
from penstock.flow.layout import Layout, Place, Route, lay_out

_CHAR = 7.4  # width of a character of the name, at 13 px; a little more than most fonts need
_PADDING = 14
_BOX_HEIGHT = 46
_ROW_GAP = 22
_WAYPOINT_HEIGHT = 12
_COLUMN_GAP = 70
_MARGIN = 16
_MAX_LABEL = 24

_STYLE = """
  .box { fill: #ffffff; stroke: #64748b; stroke-width: 1.5 }
  .receiver { fill: #e0f2fe; stroke: #0369a1 }
  .peer { fill: #ede9fe; stroke: #6d28d9 }
  .link { fill: #f8fafc; stroke: #475569 }
  .sink { fill: #dcfce7; stroke: #15803d }
  .plugin { fill: #fef9c3; stroke: #a16207 }
  .later { stroke-dasharray: 5 3 }
  .line { fill: none; stroke: #64748b; stroke-width: 1.5 }
  .head { fill: #64748b }
  text { font-family: ui-sans-serif, system-ui, "Helvetica Neue", Arial, sans-serif }
  .name { font-size: 13px; font-weight: 600; fill: #0f172a }
  .module { font-size: 11px; fill: #475569 }
  .route { font-size: 11px; fill: #0f172a; stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
  .ground { fill: #ffffff }
""".strip("\n")


def draw_svg(graph: Graph) -> str:
    return _Drawing(graph, lay_out(graph)).draw()


class _Drawing:
    def __init__(self, graph: Graph, layout: Layout) -> None:
        self._graph = graph
        self._layout = layout
        self._middle: dict[int, float] = {}  # of each place, by its id
        self._left: list[float] = []
        self._width: list[float] = []
        self._height = 0.0

    def draw(self) -> str:
        self._assign_rows()
        self._assign_columns()
        width = self._left[-1] + self._width[-1] + _MARGIN if self._left else 2 * _MARGIN
        name = self._graph.flow.name
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
            f'height="{self._height:.0f}" viewBox="0 0 {width:.0f} {self._height:.0f}" '
            f'role="img" aria-label={quoteattr(f"The flow {name}")}>',
            f"<title>The flow {escape(name)}</title>",
            f"<style>\n{_STYLE}\n</style>",
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
            'markerHeight="8" orient="auto"><path class="head" d="M0 0 L8 4 L0 8 z"/></marker></defs>',
            '<rect class="ground" width="100%" height="100%"/>',
        ]
        parts += [self._line(route) for route in self._layout.routes]
        parts += [self._box(place) for column in self._layout.columns for place in column]
        parts += [self._label(route) for route in self._layout.routes if route.link.routes]
        return "\n".join([part for part in parts if part] + ["</svg>"]) + "\n"

    def _assign_rows(self) -> None:
        heights = [sum(map(_height, column)) + _ROW_GAP * len(column) for column in self._columns]
        self._height = max(heights, default=0) - _ROW_GAP + 2 * _MARGIN
        for column, height in zip(self._columns, heights, strict=True):
            # Short columns stand in the middle.
            at = _MARGIN + (max(heights) - height) / 2
            for place in column:
                self._middle[id(place)] = at + _height(place) / 2
                at += _height(place) + _ROW_GAP

    @property
    def _columns(self) -> list[list[Place]]:
        return self._layout.columns

    def _assign_columns(self) -> None:
        at = float(_MARGIN)
        for number, column in enumerate(self._columns):
            nodes = [self._graph.nodes[place.node] for place in column if place.node]
            texts = [max(len(n.label), 0.9 * len(n.module)) for n in nodes]
            self._left.append(at)
            self._width.append(max(texts, default=0) * _CHAR + 2 * _PADDING)
            labels = [
                len(_short(route.link.label))
                for route in self._layout.routes
                if route.places[0].column == number
            ]
            at += self._width[-1] + _COLUMN_GAP + max(labels, default=0) * 0.85 * _CHAR

    def _box(self, place: Place) -> str:
        if place.node is None:
            return ""
        node = self._graph.nodes[place.node]
        kind = str(node.component.kind or "plugin")
        later = "" if node.component.available else " later"
        x, width = self._left[place.column], self._width[place.column]
        middle = self._middle[id(place)]
        radius = {"receiver": _BOX_HEIGHT / 2, "peer": _BOX_HEIGHT / 2, "sink": 3}.get(kind, 8)
        return (
            f"<g><title>{escape(node.label)}: {escape(node.module)}</title>"
            f'<rect class="box {kind}{later}" x="{x:.1f}" y="{middle - _BOX_HEIGHT / 2:.1f}" '
            f'width="{width:.1f}" height="{_BOX_HEIGHT}" rx="{radius:.0f}"/>'
            f'<text class="name" text-anchor="middle" x="{x + width / 2:.1f}" '
            f'y="{middle - 3:.1f}">{escape(node.label)}</text>'
            f'<text class="module" text-anchor="middle" x="{x + width / 2:.1f}" '
            f'y="{middle + 14:.1f}">{escape(node.module)}</text></g>'
        )

    def _line(self, route: Route) -> str:
        steps: list[str] = []
        for one, other in pairwise(route.places):
            x1 = self._left[one.column] + self._width[one.column]
            x2 = self._left[other.column]
            y1, y2 = self._middle[id(one)], self._middle[id(other)]
            if not steps:
                steps.append(f"M{x1:.1f} {y1:.1f}")
            elif one.node is None:
                steps.append(f"L{x1:.1f} {y1:.1f}")
            bend = (x1 + x2) / 2
            steps.append(f"C{bend:.1f} {y1:.1f} {bend:.1f} {y2:.1f} {x2:.1f} {y2:.1f}")
        return f'<path class="line" marker-end="url(#head)" d="{" ".join(steps)}"/>'

    def _label(self, route: Route) -> str:
        other = route.places[1]
        x = self._left[other.column] - 14
        y = self._middle[id(other)] - 5
        return (
            f'<text class="route" text-anchor="end" x="{x:.1f}" y="{y:.1f}">'
            f"{escape(_short(route.link.label))}</text>"
        )


def _height(place: Place) -> int:
    return _BOX_HEIGHT if place.node is not None else _WAYPOINT_HEIGHT


def _short(label: str) -> str:
    kept = "".join(c if c.isprintable() else "?" for c in label)
    return kept if len(kept) <= _MAX_LABEL else kept[: _MAX_LABEL - 1] + "…"
