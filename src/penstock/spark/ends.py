"""The last step of a piece, in the task that takes its rows: what needs Python, and only for a few of them.

- Why a message is invalid, in words. Spark only says which are.
- A replayed event goes only to the sinks that it names. As a filter in Spark, that would be computed for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.codecs.make import make_codec
from penstock.flow.plan import Piece
from penstock.spark.links import meta_parser
from penstock.spark.values import Shapes, codec_of
from penstock.status import Status

ONLY = "penstock.only"
"""Meta: the sinks that a replayed event is for."""

Why = Callable[[bytes], str]


@dataclass(frozen=True, slots=True)
class Ends:
    """Picklable."""

    why: dict[int, tuple[str, Why]]  # by the place at which invalid rows of a link end
    behind: dict[str, frozenset[str]]  # by cut: the sinks that it leads to

    @classmethod
    def of(cls, piece: Piece, shapes: Shapes) -> Ends:
        why: dict[int, tuple[str, Why]] = {}
        for place in piece.places:
            if place.invalid is None:
                continue
            if piece.components[place.node].module == "link.meta_parser":
                why[place.invalid] = ("meta_parser", meta_parser.why_invalid)
            elif (stage := codec_of(place.form.inside, shapes)) is not None:
                why[place.invalid] = (stage.name, make_codec(stage).why_invalid)
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
        found = pc.indices_nonzero(pc.fill_null(wrong, False)).to_pylist()
        if not found:
            return rows
        reasons = rows["reason"].to_pylist()
        for index in found:
            name, why = self.why[rows["place"][index].as_py()]
            reasons[index] = f"{name}: {why(rows['payload'][index].as_py() or b'')}"
        at = rows.schema.get_field_index("reason")
        return rows.set_column(at, rows.schema.field(at), pa.array(reasons, pa.string()))
