"""Why a message is invalid, in words. Spark only says which are: asked here, for those few, in the task."""

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


@dataclass(frozen=True, slots=True)
class Reasons:
    """Picklable. `why` is by the place at which invalid rows of a link end."""

    why: dict[int, tuple[str, Callable[[bytes], str]]]

    @classmethod
    def of(cls, piece: Piece, shapes: Shapes) -> Reasons:
        why: dict[int, tuple[str, Callable[[bytes], str]]] = {}
        for place in piece.places:
            if place.invalid is None:
                continue
            if piece.components[place.node].module == "link.meta_parser":
                why[place.invalid] = ("meta_parser", meta_parser.why_invalid)
            elif (stage := codec_of(place.form.inside, shapes)) is not None:
                why[place.invalid] = (stage.name, make_codec(stage).why_invalid)
        return cls(why)

    def fill(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows (as `Compiled.rows` gives them), with a reason for every invalid one."""
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
