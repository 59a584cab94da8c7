"""A topic's columns in Spark, and batches of a log shaped into them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.config.spelling import nearest
from penstock.errors import ConfigError
from penstock.limits import SPARK_BATCH_BYTES, SPARK_ROWS
from penstock.spark.options import At

COLUMNS = StructType(
    [
        StructField("topic", StringType(), nullable=False),
        StructField("partition", IntegerType(), nullable=False),
        StructField("offset", LongType(), nullable=False),
        StructField("time", TimestampType(), nullable=False),
        StructField("peer", StringType(), nullable=False),
        StructField("stream", StringType(), nullable=False),
        StructField("seq", LongType(), nullable=False),
        StructField("key", BinaryType()),
        StructField("meta", MapType(StringType(), StringType()), nullable=False),
        StructField("payload", BinaryType(), nullable=False),
    ]
)
"""What `format("penstock")` gives when nothing else is asked for."""


def chosen(names: Sequence[str] | None) -> StructType:
    """Some of the columns, in the order asked for."""
    if names is None:
        return COLUMNS
    known = COLUMNS.fieldNames()
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(known)}"
            raise ConfigError(f"option columns: there is no column {name[:40]!r}; {hint}")
    if not names or len(set(names)) < len(names):
        raise ConfigError("option columns: name each column once, and one at least")
    return StructType([COLUMNS[name] for name in names])


def check_schema(schema: StructType) -> None:
    """A schema given with `.schema(...)` may leave columns out, not change what they are."""
    for field in schema.fields:
        if field.name not in COLUMNS.fieldNames():
            chosen([field.name])
        wanted = COLUMNS[field.name].dataType
        if field.dataType != wanted:
            raise ConfigError(
                f"column {field.name} is {wanted.simpleString()}, not {field.dataType.simpleString()}; "
                "change it with a cast after reading"
            )


class Shape:
    """Turns batches of a log into batches of some columns, as Spark wants them."""

    def __init__(self, schema: StructType, at: At) -> None:
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._columns = [_MADE.get(name) or _taken(name) for name in schema.fieldNames()]
        self._at = at

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [column(batch, self._at) for column in self._columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


_Column = Callable[[pa.RecordBatch, At], pa.Array]


def _taken(name: str) -> _Column:
    return lambda batch, at: batch.column(name)


@lru_cache(maxsize=64)  # batches of one size follow each other
def _same(value: str | int, count: int) -> pa.Array:
    kind = pa.string() if isinstance(value, str) else pa.int32()
    return pa.repeat(pa.scalar(value, kind), count)


def _plain(column: pa.DictionaryArray) -> pa.Array:
    """Spark's Arrow reader takes no dictionaries."""
    if len(column.dictionary) == 1:
        return _same(column.dictionary[0].as_py(), len(column))
    return column.cast(pa.string())


_MADE: dict[str, _Column] = {
    "topic": lambda batch, at: _same(at.topic, batch.num_rows),
    "partition": lambda batch, at: _same(at.partition, batch.num_rows),
    "peer": lambda batch, at: _plain(batch.column("peer")),
    "stream": lambda batch, at: _plain(batch.column("stream")),
}


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about SPARK_ROWS, large enough that their fixed cost is small."""
    waiting: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if waiting and (
            rows + batch.num_rows > SPARK_ROWS or size_bytes + batch.nbytes > SPARK_BATCH_BYTES
        ):
            yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            waiting, rows, size_bytes = [], 0, 0
        waiting.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
    if waiting:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
