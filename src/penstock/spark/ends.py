"""The last step of a piece, in the task that takes its rows: what needs Python, and only for a few of them.

- Why a message is invalid, in words. Spark only says which are.
- A replayed event does not go where it has been. As a filter in Spark, that would be computed for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.make import make_codec
from penstock.flow.plan import CUT, Piece, Place, cut_node
from penstock.links.payload import CompressorOptions, DecodeOptions
from penstock.sinks.replayed import REPLAY, done_and_open
from penstock.spark.links import compressor, formats, meta_parser
from penstock.spark.values import Shapes, shape_of
from penstock.status import Status

Why = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Picklable."""

    why: dict[int, tuple[str, Why]]  # by the place at which invalid rows of a link end
    ways: dict[int, Way]  # by the place of a sink or a cut

    @classmethod
    def of(cls, piece: Piece, shapes: Shapes) -> Ends:
        why: dict[int, tuple[str, Why]] = {}
        for place in piece.places:
            if place.invalid is not None:
                why[place.invalid] = _why(piece, place, shapes)
        return cls(why, cls.ways_of(piece))

    @staticmethod
    def ways_of(piece: Piece) -> dict[int, Way]:
        leaves = [place for place in piece.places if place.kind in ("sink", "cut")]
        return {place.index: Way.to(place, piece) for place in leaves}

    def finish(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as `Compiled.rows` gives them: without copies that a replay need not send again, with reasons."""
        return self._explained(self._wanted(rows))

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
