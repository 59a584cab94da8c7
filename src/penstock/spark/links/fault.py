"""What a test does to a link: events end before they reach it, with a status and a reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from penstock.flow.plan import Place
from penstock.links.fault import FaultOptions
from penstock.sinks.columns import as_events
from penstock.spark.rows import AT, REASON, Rows


def apply(rows: Rows, place: Place, options: FaultOptions) -> Rows:
    assert place.failed is not None
    schema = StructType([StructField(one.name, one.dataType) for one in rows.df.schema])
    work = _Struck(options, place.index, place.failed)
    done = Rows(rows.df.mapInArrow(work, schema), rows.live | {place.failed})
    return done.go_on(place, place.routes[0])


@dataclass(frozen=True, slots=True)
class _Struck:
    """In a worker, for rows that stand at `place`; others pass."""

    options: FaultOptions
    place: int
    end: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            at = batch.column(AT).to_numpy(zero_copy_only=False).copy()
            here = np.flatnonzero(at == self.place)
            if len(here):
                events = as_events(batch.take(pa.array(here)))
                struck = here[np.asarray(self.options.strikes(events), np.bool_)]
                at[struck] = self.end
                yield self._ended(batch, at, struck)
            else:
                yield batch

    def _ended(self, batch: pa.RecordBatch, at: np.ndarray, struck: np.ndarray) -> pa.RecordBatch:
        reasons = batch.column(REASON).to_pylist()
        for index in struck:
            reasons[index] = self.options.reason
        columns = {name: batch.column(name) for name in batch.schema.names}
        columns[AT] = pa.array(at, batch.schema.field(AT).type)
        columns[REASON] = pa.array(reasons, batch.schema.field(REASON).type)
        return pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
