"""The last step of a piece, in the task that takes its rows: what need not travel, and what needs Python.

- The columns of the event that no link has changed are read from the log (`spark.fetching`).
- A row says at which place it ended; what that means is looked up.
- A replayed event does not go where it has been. As a filter in Spark, that would be computed for all.
- Why a message is invalid, in words. Spark only says which are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.make import make_codec
from penstock.flow.plan import CUT, Piece, Place, cut_node
from penstock.links.payload import CompressorOptions, DecodeOptions
from penstock.sinks.replayed import REPLAY, done_and_open
from penstock.sinks.task import COUNTER
from penstock.spark.fetching import Fetch
from penstock.spark.links import compressor, formats, meta_parser
from penstock.spark.rows import COUNTS
from penstock.spark.values import Shapes, shape_of
from penstock.status import Status

Why = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a place means at which rows end: for a sink (or a cut), or with a status; and the component."""

    sink: str | None
    status: str | None
    branch: str | None


@dataclass(frozen=True, slots=True)
class Ends:
    """Picklable."""

    leaves: dict[int, Leaf]  # by place
    why: dict[int, tuple[str, Why]]  # by the place at which invalid rows of a link end
    ways: dict[int, Way]  # by the place of a sink or a cut
    fetch: Fetch | None = None

    @classmethod
    def of(cls, piece: Piece, shapes: Shapes, fetch: Fetch | None = None) -> Ends:
        why: dict[int, tuple[str, Why]] = {}
        for place in piece.places:
            if place.invalid is not None:
                why[place.invalid] = _why(piece, place, shapes)
        leaves = {place.index: _leaf(place) for place in piece.places if place.is_last}
        leaves[COUNTS] = Leaf(None, COUNTER, None)
        return cls(leaves, why, cls.ways_of(piece), fetch)

    @classmethod
    def only(cls, sink: str) -> Ends:
        """All rows are for this sink: their place is 0."""
        return cls({0: Leaf(sink, None, None)}, {}, {})

    @staticmethod
    def ways_of(piece: Piece) -> dict[int, Way]:
        leaves = [place for place in piece.places if place.kind in ("sink", "cut")]
        return {place.index: Way.to(place, piece) for place in leaves}

    def places_of(self, sinks: Iterable[str]) -> list[int]:
        wanted = set(sinks)
        return [place for place, leaf in self.leaves.items() if leaf.sink in wanted]

    def finish(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Rows as `Compiled.rows` gives them become what `sinks.task` takes: whole, without copies that a replay
        need not send again, with reasons."""
        whole = batches if self.fetch is None else self.fetch(batches)
        for rows in whole:
            if rows.num_rows:
                yield self._explained(self._wanted(self._ended(rows)))

    def _ended(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns `sink`, `status` and `branch`."""
        lowest, highest = min(self.leaves), max(self.leaves)
        places = [self.leaves.get(place) for place in range(lowest, highest + 1)]
        index = pc.subtract(rows["place"], lowest)
        for name in ("sink", "status", "branch"):
            table = pa.array([one and getattr(one, name) for one in places], pa.string())
            rows = rows.append_column(name, table.take(index))
        return rows

    def _wanted(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        marks = pc.map_lookup(rows["meta"], REPLAY, "last")
        if marks.null_count == len(rows):
            return rows
        places = rows["place"].to_pylist()
        keep = [
            mark is None or place not in self.ways or self.ways[place].is_open(mark)
            for mark, place in zip(marks.to_pylist(), places, strict=True)
        ]
        return rows.filter(pa.array(keep, pa.bool_()))

    def _explained(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        wrong = pc.and_(pc.equal(rows["status"], Status.INVALID), pc.is_null(rows["reason"]))
        invalid = pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist()
        if not invalid:
            return rows
        reasons = rows["reason"].to_pylist()
        for index in invalid:
            name, why = self.why[rows["place"][index].as_py()]
            found = why(rows["payload"][index].as_py() or b"")
            reasons[index] = f"{name}: {found or 'what was computed cannot be written'}"
        at = rows.schema.get_field_index("reason")
        return rows.set_column(at, rows.schema.field(at), pa.array(reasons, pa.string()))


@dataclass(frozen=True, slots=True)
class Way:
    """How a copy comes to a sink or a cut, in the names that receipts have for branches."""

    names: frozenset[str]  # where it arrives, and where the copies of which it is one were sent
    over: frozenset[str]  # where it could have ended before

    @classmethod
    def to(cls, place: Place, piece: Piece) -> Way:
        arrives = cut_node(place.node) if place.node.startswith(CUT) else place.node
        over = [
            one.node
            for one in piece.places
            if one.kind == "end" and one.path == place.path[: len(one.path)]
        ]
        return cls(
            frozenset({arrives, *(turn.target for turn in place.path)}), frozenset(over) - {arrives}
        )

    def is_open(self, mark: str) -> bool:
        """Whether a replayed message has not come this way yet. If several copies go to one sink, its name
        being done says nothing of a copy that ended before."""
        done, ended = done_and_open(mark)
        return done.isdisjoint(self.names) or not ended.isdisjoint(self.over)


def _leaf(place: Place) -> Leaf:
    sink = place.node if place.kind in ("sink", "cut") else None
    return Leaf(sink, None if place.status is None else str(place.status), place.node)


def _why(piece: Piece, place: Place, shapes: Shapes) -> tuple[str, Why]:
    """Who can say why a payload is wrong at this place."""
    component = piece.components[place.node]
    options = component.options
    codec = shape_of(place.form, shapes, place.node).codec
    if component.module == "link.meta_parser":
        return "meta_parser", meta_parser.why_invalid
    if isinstance(options, CompressorOptions):
        return options.algorithm, partial(compressor.why_not, options)
    if isinstance(options, DecodeOptions):
        codec = options.stage()
        if codec is None:
            return "base64", formats.why_not_base64
    elif codec is None:
        codec = place.into.codec if place.into is not None else None
    if codec is None or codec.name == "binary":
        return component.name, _nothing
    return codec.name, make_codec(codec).why_invalid


def _nothing(payload: bytes) -> None:
    """Bytes as such are never wrong."""
