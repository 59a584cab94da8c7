"""The last step of a piece, in the task that takes its rows: what needs Python, and only for a few of them.

- Why a message is invalid, in words. Spark only says which are.
- A replayed event goes only to the sinks that it names. As a filter in Spark, that would be computed for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.make import make_codec
from penstock.flow.plan import Piece, Place
from penstock.links.payload import CompressorOptions, DecodeOptions
from penstock.spark.links import compressor, formats, meta_parser
from penstock.spark.values import Shapes, shape_of
from penstock.status import Status

ONLY = "penstock.only"
"""Meta: the sinks that a replayed event is for."""

Why = Callable[[bytes], str | None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Picklable."""

    why: dict[int, tuple[str, Why]]  # by the place at which invalid rows of a link end
    behind: dict[str, frozenset[str]]  # by cut: the sinks that it leads to

    @classmethod
    def of(cls, piece: Piece, shapes: Shapes) -> Ends:
        why: dict[int, tuple[str, Why]] = {}
        for place in piece.places:
            if place.invalid is not None:
                why[place.invalid] = _why(piece, place, shapes)
        return cls(why, {cut.sink: frozenset(cut.leads_to) for cut in piece.cuts})

    def finish(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows as `Compiled.rows` gives them: without those that a replay is not for, with reasons."""
        return self._explained(self._meant(rows))

    def _meant(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        named = pc.map_lookup(rows["meta"], ONLY, "last")
        if named.null_count == len(rows):
            return rows
        keep = [
            only is None
            or sink is None
            or not ({sink} | self.behind.get(sink, set())).isdisjoint(only.split(","))
            for only, sink in zip(named.to_pylist(), rows["sink"].to_pylist(), strict=True)
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
