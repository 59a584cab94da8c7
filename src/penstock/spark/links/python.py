"""link.python: a user's function.

DataFrame to DataFrame: called once, when the flow starts, with no rows; then for every batch. It is given the
columns of the event and of its value, and `_penstock_origin`, which says whose a row is: it must come out again,
as it does from everything but `select` and `groupBy`.

Arrow to Arrow: called in Spark's Python workers, with record batches of the event's columns, and gives the same
columns, for any number of rows. If it raises, it is called again with fewer rows, until those are found that it
fails on: they end as failed, with the error as the reason. So it may see a row more than once.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from penstock.errors import ConfigError
from penstock.flow.plan import Place
from penstock.links.query import PythonOptions
from penstock.sinks.interface import EVENTS
from penstock.spark import frames
from penstock.spark.frames import FrameLink, Given
from penstock.spark.queries import ORIGIN
from penstock.spark.rows import AT, REASON, Rows
from penstock.spark.scope import Scope


def apply(rows: Rows, place: Place, options: PythonOptions, scope: Scope) -> Rows:
    if options.mode == "dataframe":
        return frames.apply(
            rows, place, scope, scope.function("frame", place, lambda: link(options, place))
        )
    find(options.function, place.node)
    assert place.failed is not None
    assert place.into is not None
    assert place.into.shape is not None
    scope.shapes[place.into.shape] = scope.shape(place)
    schema = StructType([StructField(one.name, one.dataType) for one in rows.df.schema])
    work = OnArrow(options.function, place.node, place.index, place.failed)
    done = Rows(rows.df.mapInArrow(work, schema), rows.live | {place.failed})
    return done.go_on(place, place.routes[0])


def find(function: str, where: str) -> Callable[..., Any]:
    """`package.module:function`."""
    module, _, name = function.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{where}: {function}: the module {module} cannot be imported: {error}; it must be installed, "
            "on PYTHONPATH, or beside the flow file"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{where}: {function}: {module} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{where}: {function} is not a function")
    return found  # type: ignore[no-any-return]


def link(options: PythonOptions, place: Place) -> FrameLink:
    """DataFrame to DataFrame."""
    function = find(options.function, place.node)

    def run(given: Given) -> tuple[DataFrame, str]:
        found = function(given.df)
        if not isinstance(found, DataFrame):
            kind = type(found).__name__
            raise ConfigError(f"{place.node}: {options.function} gave {kind}, not a DataFrame")
        if ORIGIN not in found.columns:
            raise ConfigError(
                f"{place.node}: what {options.function} gave has no column {ORIGIN}, so nobody can say whose "
                f"events these are; select it too"
            )
        return found, ORIGIN

    return run


@dataclass(frozen=True, slots=True)
class OnArrow:
    """Arrow to Arrow: in a worker, for rows that stand at `place`; others pass."""

    function: str
    node: str
    place: int
    failed: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        function = find(self.function, self.node)
        for batch in batches:
            here = pc.equal(batch[AT], self.place)
            mine = batch.filter(here)
            if mine.num_rows == 0:
                yield batch
                continue
            others = batch.filter(pc.invert(here))
            done = [*self._tried(function, mine)]
            # Where rows of both kinds come together again, they must be in order.
            table = pa.Table.from_batches([others, *done], batch.schema)
            yield from table.sort_by([(name, "ascending") for name in _ORDER]).to_batches()

    def _tried(
        self, function: Callable[..., Any], rows: pa.RecordBatch
    ) -> Iterator[pa.RecordBatch]:
        try:
            given = function(rows.select(EVENTS.names))
            yield self._checked(given, rows.schema)
        except Exception as error:
            if rows.num_rows == 1:
                yield _standing(rows, self.failed, f"{type(error).__name__}: {error}")
                return
            half = rows.num_rows // 2
            yield from self._tried(function, rows.slice(0, half))
            yield from self._tried(function, rows.slice(half))

    def _checked(self, given: object, schema: pa.Schema) -> pa.RecordBatch:
        if not isinstance(given, (pa.RecordBatch, pa.Table)):
            raise TypeError(f"{self.function} gave {type(given).__name__}, not a RecordBatch")
        missing = [name for name in EVENTS.names if name not in given.schema.names]
        if missing:
            raise TypeError(f"what {self.function} gave has no column {missing[0]}")
        table = given if isinstance(given, pa.Table) else pa.Table.from_batches([given])
        columns = [
            table[name].combine_chunks().cast(schema.field(name).type) for name in EVENTS.names
        ]
        found = pa.RecordBatch.from_arrays(columns, EVENTS.names)
        return _standing(found, self.place, None, schema)


_ORDER = ("topic", "partition", "offset")


def _standing(
    rows: pa.RecordBatch, place: int, reason: str | None, schema: pa.Schema | None = None
) -> pa.RecordBatch:
    """The same events, standing elsewhere."""
    schema = schema or rows.schema
    count = rows.num_rows
    found = {name: rows[name] for name in EVENTS.names}
    found[AT] = pa.repeat(pa.scalar(place, pa.int32()), count)
    found[REASON] = pa.repeat(pa.scalar(reason, pa.string()), count)
    return pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)
