"""From a piece of a plan to Spark: rows in, rows that know where they end out. One DataFrame, one scan.

Compiled once, when the flow starts, against no rows at all: an expression that Spark does not understand is
found then, and said with the component's name. Applied to every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.flow.plan import Piece, Place, leads_to
from penstock.links.payload import (
    CompressorOptions,
    DecodeOptions,
    EncodeOptions,
    MetaParserOptions,
)
from penstock.links.query import FilterOptions, PythonOptions, SelectOptions, SqlOptions
from penstock.links.routing import FanoutOptions, RouterOptions
from penstock.sinks.task import COUNTER
from penstock.spark import sql
from penstock.spark.columns import COLUMNS
from penstock.spark.ends import Ends
from penstock.spark.links import (
    compressor,
    fanout,
    filter,
    formats,
    meta_parser,
    python,
    select,
)
from penstock.spark.links import sql as sql_link
from penstock.spark.rows import AT, COUNTS, EVENT, REASON, Rows
from penstock.spark.scope import Scope
from penstock.spark.values import Shape
from penstock.status import Status

REQUIRED = {
    # One value that cannot be converted must not stop a whole flow: it is NULL.
    "spark.sql.ansi.enabled": "false",
    # Meta that is set again replaces what was there.
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    # JSON that does not fit its columns is invalid, not half empty.
    "spark.sql.json.enablePartialResults": "false",
}
"""Settings that expressions here count on."""


class Compiled:
    """One piece, ready for rows.

    `shapes` are the columns that links have computed, of this piece and of those before it: hand the same
    dictionary to every piece of a plan, in the plan's order.
    """

    def __init__(
        self,
        spark: SparkSession,
        piece: Piece,
        shapes: dict[tuple[str, ...], Shape] | None = None,
    ) -> None:
        self.piece = piece
        self._scope = Scope({} if shapes is None else shapes)
        self._order = _in_order(piece)
        self._kept: DataFrame | None = None
        for key, value in REQUIRED.items():
            spark.conf.set(key, value)
        self._rows(spark.createDataFrame([], COLUMNS), {})
        self.ends = Ends.of(piece, self._scope.shapes)

    def rows(self, df: DataFrame, counters: Mapping[str, int] | None = None) -> DataFrame:
        """The columns of an event, and `place`, `sink`, `status`, `reason`, `branch` (see `flow.plan`).

        A row has either a `sink` (a component's name, or a cut's) or a `status`; `branch` is the component
        where it ended. `Ends` has the last word on every batch of them, in the task that takes them.

        `counters` is where links that count begin. Rows with the status `counter` are no events: `reason`
        names a counter, `seq` is where it has come to.

        Call `release` when the batch is done.
        """
        if self._scope.splits:
            # Several branches read it; what it reads must be read once.
            df = self._kept = df.persist()
        return self._rows(df, counters or {})

    def release(self) -> None:
        """Forget what was kept of the last batch."""
        if self._kept is not None:
            self._kept.unpersist()
            self._kept = None

    def _rows(self, df: DataFrame, counters: Mapping[str, int]) -> DataFrame:
        rows = Rows.start(df, self.piece.start)
        for place in self._order:
            if place.index in rows.live:
                rows = self._apply(rows, place, counters)
        return self._ended(rows)

    def _apply(self, rows: Rows, place: Place, counters: Mapping[str, int]) -> Rows:
        component, scope = self.piece.components[place.node], self._scope
        if place.kind == "encode":
            assert component.codec is not None
            return formats.rewrite(rows, place, component.codec, scope)
        match component.options:
            case FilterOptions() as options:
                return filter.apply(rows, place, options, scope)
            case SelectOptions() as options:
                return select.apply(rows, place, options, scope)
            case SqlOptions() as options:
                return sql_link.apply(rows, place, options, scope)
            case PythonOptions() as options:
                return python.apply(rows, place, options, scope)
            case CompressorOptions() as options:
                return compressor.apply(rows, place, options, scope)
            case EncodeOptions() as options:
                return formats.encode(rows, place, options, scope)
            case DecodeOptions() as options:
                return formats.decode(rows, place, options, scope)
            case MetaParserOptions():
                return meta_parser.apply(rows, place)
            case FanoutOptions():
                shuffled = self.piece.head is not None or scope.splits
                return fanout.apply(rows, place, counters, shuffled=shuffled)
        raise ConfigError(f"{place.node}: {component.module} is not there yet in this version")

    def _ended(self, rows: Rows) -> DataFrame:
        ends = [self.piece.places[index] for index in sorted(rows.live - {COUNTS})]
        assert all(place.is_last for place in ends), "every link has done its work"
        sinks = [one for one in ends if one.kind in ("sink", "cut")]
        statuses = _by_place(ends, lambda one: one.status)
        return rows.df.selectExpr(
            *EVENT,
            f"{AT} AS place",
            f"{_by_place(sinks, lambda one: one.node)} AS sink",
            f"CASE {AT} WHEN {COUNTS} THEN {sql.text(COUNTER)} ELSE {statuses} END AS status",
            f"{self._reason(ends)} AS reason",
            f"{_by_place(ends, lambda one: one.node)} AS branch",
        )

    def _reason(self, ends: list[Place]) -> str:
        unroutable = [
            (str(one.index), self._no_route(one)) for one in ends if one.status is Status.UNROUTABLE
        ]
        return sql.case(AT, unroutable, REASON)

    def _no_route(self, place: Place) -> str:
        options = self.piece.components[place.node].options
        assert isinstance(options, RouterOptions), "only routers have no route"
        key = options.routing_key
        found = f"meta[{sql.text(key)}]"
        none = sql.text(f"no route: the meta attribute {key} is not set")
        return f"coalesce(concat({sql.text(f'no route for {key}=')}, {found}), {none})"


def _by_place(places: list[Place], found: Callable[[Place], str | None]) -> str:
    cases = [(str(one.index), sql.text(of)) for one in places if (of := found(one)) is not None]
    return sql.case(AT, cases, "CAST(NULL AS string)")


def _in_order(piece: Piece) -> list[Place]:
    """Places with work to do, each after all from which rows come to it."""
    order: list[Place] = []
    seen: set[int] = set()

    def visit(index: int) -> None:
        if index in seen:
            return
        seen.add(index)
        place = piece.places[index]
        for route in place.routes:
            for target in sorted(leads_to(route)):
                visit(target)
        if not place.is_last:
            order.append(place)

    for place in piece.places:
        visit(place.index)
    return order[::-1]
