"""link.fanout: round robin. The destination changes after every event that comes here.

Counted in the tasks, in the order of the events: for each partition of a topic by itself, since nothing orders
one against another. Where the count begins is told by the coordinator for each batch; where it ends goes back
with the results, on a row of its own, and is logged with the decision. So a batch that is run again counts the
same, and no batch begins anew. (The offset modulo the number of destinations would need no counting, but would
starve destinations where only some of a partition's events come here, or where offsets have gaps.)

Behind a link with state, rows come in partitions of the state and not of topics: they are put in the order of
their origins, and counted per partition of the state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.functions import expr
from pyspark.sql.types import IntegerType, StructField, StructType

from penstock.flow.plan import Pick, Place
from penstock.spark.routes import TURN
from penstock.spark.rows import AT, COUNTS, REASON, Rows

_ORDER = ("topic", "partition", "offset", "xxhash64(payload)")


def apply(rows: Rows, place: Place, counters: Mapping[str, int], *, shuffled: bool) -> Rows:
    df = rows.df.sortWithinPartitions(*map(expr, _ORDER)) if shuffled else rows.df
    schema = StructType([StructField(one.name, one.dataType) for one in df.schema])
    schema.add(StructField(TURN, IntegerType()))
    name = ">".join([place.node, *(turn.target for turn in place.path)])
    own = {key: value for key, value in counters.items() if key.startswith(f"{name} ")}
    counting = Counting(name, place.index, len(place.routes), own, shuffled)
    # From here on there are rows that are no events: no link may take all rows for its own.
    counted = Rows(df.mapInArrow(counting, schema), rows.live | {COUNTS})
    first, *others = place.routes
    cases = tuple((str(turn), route) for turn, route in enumerate(others, 1))
    return counted.go_on(place, Pick(place.node, "turn", None, cases, first))


@dataclass(frozen=True, slots=True)
class Counting:
    """In a task: rows that stand at `place` get their turn. The last row says where the count has come to."""

    name: str
    place: int
    turns: int
    start: dict[str, int]
    shuffled: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        counts: dict[str, int] = {}
        schema = None
        for batch in batches:
            schema = batch.schema.append(pa.field(TURN, pa.int32()))
            here = np.flatnonzero(pc.equal(batch[AT], self.place).to_numpy(zero_copy_only=False))
            turns = np.zeros(batch.num_rows, np.int32)
            for counter, rows in self._counters(batch, here):
                first = counts.get(counter, self.start.get(counter, 0))
                turns[rows] = (first + np.arange(len(rows))) % self.turns
                counts[counter] = (first + len(rows)) % self.turns
            columns = [*batch.columns, pa.array(turns)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        if counts and schema is not None:
            yield _result(counts, schema)

    def _counters(
        self, batch: pa.RecordBatch, here: npt.NDArray[np.int64]
    ) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """Each counter that the rows `here` are counted by, and which of them are."""
        if self.shuffled:
            context = TaskContext.get()
            assert context is not None
            if len(here):
                yield f"{self.name} #{context.partitionId()}", here
            return
        topics = batch["topic"].take(pa.array(here)).dictionary_encode()
        partitions = batch["partition"].to_numpy(zero_copy_only=False)[here]
        codes = topics.indices.to_numpy(zero_copy_only=False)
        for code, topic in enumerate(topics.dictionary.to_pylist()):
            for partition in np.unique(partitions[codes == code]):
                rows = here[(codes == code) & (partitions == partition)]
                yield f"{self.name} {topic}/{partition}", rows


def _result(counts: dict[str, int], schema: pa.Schema) -> pa.RecordBatch:
    found = {
        AT: pa.repeat(pa.scalar(COUNTS, pa.int32()), len(counts)),
        REASON: pa.array(list(counts), pa.string()),
        "seq": pa.array(list(counts.values()), pa.int64()),
    }
    columns = [
        found.get(field.name, pa.nulls(len(counts), field.type)).cast(field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
