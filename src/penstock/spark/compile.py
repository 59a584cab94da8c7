"""From a piece of a plan to Spark: rows in, rows that know where they end out. One DataFrame, one scan.

Compiled once, when the flow starts, against no rows at all: an expression that Spark does not understand is
found then, and said with the component's name. Applied to every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.flow.plan import Piece, Place, leads_to
from penstock.links.fault import FaultOptions
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
from penstock.spark.heads.interface import Head, arrived, entries
from penstock.spark.heads.make import make_head, nothing_streamed
from penstock.spark.links import (
    compressor,
    fanout,
    fault,
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
        self.head = None if piece.head is None else make_head(piece, self._scope)
        self.given: StructType = COLUMNS
        """The columns of what `rows` takes: of the topics, or of what the head gives."""
        if self.head is not None:
            inputs = {source.entry: nothing_streamed(spark) for source in entries(piece)}
            self.given = self.head.stream(inputs).schema
        self._rows(spark.createDataFrame([], self.given), {}, None)
        self.ends = Ends.of(piece, self._scope.shapes)

    def rows(
        self,
        df: DataFrame,
        counters: Mapping[str, int] | None = None,
        refused: DataFrame | None = None,
    ) -> DataFrame:
        """The columns of an event, and `place`, `sink`, `status`, `reason`, `branch` (see `flow.plan`).

        A row has either a `sink` (a component's name, or a cut's) or a `status`; `branch` is the component
        where it ended. `Ends` has the last word on every batch of them, in the task that takes them.

        `counters` is where links that count begin. Rows with the status `counter` are no events: `reason`
        names a counter, `seq` is where it has come to.

        Of a piece with a head, `df` is what that gives, and `refused` what it did not let in.

        Call `release` when the batch is done.
        """
        if self._scope.splits or self.head is not None:
            # Several branches read it; what it reads must be read once. And what comes out of state is the
            # same for all sinks, also if the job has to run again for one of them.
            df = self._kept = df.persist()
        return self._rows(df, counters or {}, refused)

    def release(self) -> None:
        """Forget what was kept of the last batch."""
        if self._kept is not None:
            self._kept.unpersist()
            self._kept = None

    def _rows(
        self, df: DataFrame, counters: Mapping[str, int], refused: DataFrame | None
    ) -> DataFrame:
        if self.head is None:
            rows = Rows.start(df, self.piece.start)
        else:
            rows = self._behind_head(self.head, df, refused)
        for place in self._order:
            if place.index in rows.live:
                rows = self._apply(rows, place, counters)
        return self._ended(rows)

    def _behind_head(self, head: Head, df: DataFrame, refused: DataFrame | None) -> Rows:
        entrance = self.piece.entrance
        rows = arrived(df, entrance)
        if refused is None:
            return _in_streams(head.finish(rows))
        ends = {one.index for one in self.piece.places if one.node == entrance.node}
        if len(df.columns) == len(
            EVENT
        ):  # it lets events through as they are, perhaps of these, too
            whole = Rows(rows.df.unionByName(refused), rows.live | ends)
            return _in_streams(head.finish(whole))
        rows = head.finish(rows)
        joined = rows.df.select(*EVENT, AT, REASON).unionByName(refused)
        return _in_streams(Rows(joined, rows.live | (ends - {entrance.index})))

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
            case FaultOptions() as options:
                return fault.apply(rows, place, options)
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


def _in_streams(rows: Rows) -> Rows:
    """State is spread by other things than streams: bring each stream together again, in its order."""
    whole = rows.df.repartition("peer", "stream")
    return Rows(whole.sortWithinPartitions("topic", "partition", "offset"), rows.live)


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
