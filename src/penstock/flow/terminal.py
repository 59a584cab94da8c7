"""A flow drawn for a terminal, with box characters or plain ASCII."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from unicodedata import combining, east_asian_width

from penstock.flow.graph import Graph
from penstock.flow.layout import Layout, Place, Route, lay_out

_BOX_ROWS = 4  # border, name, module, border
_GAP_ROWS = 1
_TRACK_COLUMNS = 2  # a vertical line and the space beside it
_MAX_LABEL = 24

# Lines are kept as the directions they leave a cell in, so that lines that meet join.
_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_UNICODE = " ╵╶└╷│┌├╴┘─┴┐┤┬┼"
_ASCII = " |-+||++-+-++++++"[:16]
_ARROWS = {False: "▶", True: ">"}


@dataclass(slots=True)
class _Canvas:
    lines: dict[tuple[int, int], int]  # (row, column) → directions
    text: dict[tuple[int, int], str]

    def horizontal(self, row: int, left: int, right: int) -> None:
        for column in range(left, right + 1):
            ends = (_LEFT if column > left else 0) | (_RIGHT if column < right else 0)
            self._add(row, column, ends)

    def vertical(self, column: int, top: int, bottom: int) -> None:
        for row in range(top, bottom + 1):
            ends = (_UP if row > top else 0) | (_DOWN if row < bottom else 0)
            self._add(row, column, ends)

    def _add(self, row: int, column: int, directions: int) -> None:
        self.lines[row, column] = self.lines.get((row, column), 0) | directions

    def write(self, row: int, column: int, text: str) -> None:
        for offset, char in enumerate(text):
            self.text[row, column + offset] = char

    def render(self, ascii_only: bool) -> str:
        cells = {at: (_ASCII if ascii_only else _UNICODE)[d] for at, d in self.lines.items()}
        cells |= self.text
        rows: dict[int, dict[int, str]] = {}
        for (row, column), char in cells.items():
            rows.setdefault(row, {})[column] = char
        lines = []
        for row in range(max(rows, default=-1) + 1):
            found = rows.get(row, {})
            line = "".join(found.get(column, " ") for column in range(max(found, default=-1) + 1))
            lines.append(line.rstrip())
        return "\n".join(lines) + "\n"


def draw_text(graph: Graph, *, ascii_only: bool = False) -> str:
    return _Drawing(graph, lay_out(graph), ascii_only).draw()


class _Drawing:
    def __init__(self, graph: Graph, layout: Layout, ascii_only: bool) -> None:
        self._graph = graph
        self._layout = layout
        self._ascii = ascii_only
        self._canvas = _Canvas({}, {})
        self._row: dict[int, int] = {}  # of the line that goes in and out of a place
        self._left: list[int] = []  # of each column of boxes
        self._width: list[int] = []
        self._labels = {id(route): self._label(route) for route in layout.routes}

    def draw(self) -> str:
        self._assign_rows()
        self._assign_columns()
        for column in self._layout.columns:
            for place in column:
                self._box(place)
        for route in self._layout.routes:
            self._line(route)
        return self._canvas.render(self._ascii)

    def _lines_of(self, place: Place) -> tuple[str, str]:
        assert place.node is not None
        node = self._graph.nodes[place.node]
        return self._fit(node.label), self._fit(node.module)

    def _label(self, route: Route) -> str:
        label = self._fit(route.link.label)
        return label if len(label) <= _MAX_LABEL else label[: _MAX_LABEL - 1] + self._ellipsis

    @property
    def _ellipsis(self) -> str:
        return "~" if self._ascii else "…"

    def _fit(self, text: str) -> str:
        """One cell a character, or the columns would not line up."""
        return "".join(
            c
            if c.isprintable()
            and not combining(c)
            and east_asian_width(c) not in "WF"
            and (c.isascii() or not self._ascii)
            else "?"
            for c in text
        )

    def _assign_rows(self) -> None:
        for column in self._layout.columns:
            top = 0
            for place in column:
                height = _BOX_ROWS if place.node is not None else 1
                wanted = [self._row[id(one)] for one in place.behind]
                middle = 1 if place.node is not None else 0
                ideal = (sum(wanted) // len(wanted) - middle) if wanted else 0
                # Several branches are spread around the row they come from.
                spread = max((len(one.ahead) for one in place.behind), default=1)
                if spread > 1:
                    ideal -= (spread - 1) * (_BOX_ROWS + _GAP_ROWS) // 2
                start = max(top, ideal)
                self._row[id(place)] = start + middle
                top = start + height + _GAP_ROWS

    def _assign_columns(self) -> None:
        at = 0
        for number, column in enumerate(self._layout.columns):
            texts = [text for place in column if place.node for text in self._lines_of(place)]
            self._left.append(at)
            self._width.append(max((len(text) for text in texts), default=0) + 4)
            at += self._width[-1] + self._gap(number)

    def _gap(self, number: int) -> int:
        """The space after a column: its tracks, the longest label, and the arrow."""
        labels = [
            len(self._labels[id(route)])
            for route in self._layout.routes
            if route.places[0].column == number
        ]
        label = max(labels, default=0)
        return len(self._tracks(number)) * _TRACK_COLUMNS + (label + 2 if label else 0) + 4

    def _tracks(self, number: int) -> dict[int, int]:
        """The vertical line of each place in a column whose links turn, by the place's id."""
        turning = [
            place
            for place in self._layout.columns[number]
            if any(self._row[id(place)] != self._row[id(one)] for one in place.ahead)
        ]
        return {id(place): track for track, place in enumerate(reversed(turning))}

    def _box(self, place: Place) -> None:
        row, left = self._row[id(place)], self._left[place.column]
        right = left + self._width[place.column] - 1
        if place.node is None:
            self._canvas.horizontal(row, left, right)
            return
        top, bottom = row - 1, row + 2
        for edge in (top, bottom):
            self._canvas.horizontal(edge, left, right)
        for edge in (left, right):
            self._canvas.vertical(edge, top, bottom)
        name, module = self._lines_of(place)
        self._canvas.write(row, left + 2, name)
        self._canvas.write(row + 1, left + 2, module)

    def _line(self, route: Route) -> None:
        for number, (one, other) in enumerate(pairwise(route.places)):
            start = self._left[one.column] + self._width[one.column]
            end = self._left[other.column] - (1 if other.node is not None else 0)
            here, there = self._row[id(one)], self._row[id(other)]
            tracks = self._tracks(one.column)
            track = start + 1 + tracks.get(id(one), 0) * _TRACK_COLUMNS
            if here == there:
                self._canvas.horizontal(here, start - 1, end)
            else:
                self._canvas.horizontal(here, start - 1, track)
                self._canvas.vertical(track, min(here, there), max(here, there))
                self._canvas.horizontal(there, track, end)
            if other.node is not None:
                self._canvas.write(there, end, _ARROWS[self._ascii])
            label = self._labels[id(route)]
            if number == 0 and label:
                at = start + 1 + len(tracks) * _TRACK_COLUMNS
                self._canvas.write(there, at, f" {label} ")
