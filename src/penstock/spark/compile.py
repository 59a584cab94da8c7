"""From a piece of a plan to Spark: rows in, rows that know where they end out. One DataFrame, one scan.

Compiled once, when the flow starts, against no rows at all: an expression that Spark does not understand is
found then, and said with the component's name. Applied to every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.flow.plan import Piece, Place, leads_to
from penstock.links.query import FilterOptions
from penstock.links.routing import RouterOptions
from penstock.spark import sql
from penstock.spark.columns import COLUMNS
from penstock.spark.ends import Ends
from penstock.spark.links import filter, meta_parser
from penstock.spark.rows import AT, EVENT, REASON, Rows
from penstock.spark.values import Scope, Shape
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
        self, spark: SparkSession, piece: Piece, shapes: dict[str, Shape] | None = None
    ) -> None:
        self.piece = piece
        self._scope = Scope({} if shapes is None else shapes)
        self._order = _in_order(piece)
        for key, value in REQUIRED.items():
            spark.conf.set(key, value)
        empty = spark.createDataFrame([], COLUMNS)
        self.rows(empty)
        self.ends = Ends.of(piece, self._scope.shapes)

    def rows(self, df: DataFrame) -> DataFrame:
        """The columns of an event, and `place`, `sink`, `status`, `reason`, `branch` (see `flow.plan`).

        A row has either a `sink` (a component's name, or a cut's) or a `status`; `branch` is the component
        where it ended. `Ends` has the last word on every batch of them, in the task that takes them.
        """
        rows = Rows.start(df, self.piece.start)
        for place in self._order:
            if place.index in rows.live:
                rows = self._apply(rows, place)
        return self._ended(rows)

    def _apply(self, rows: Rows, place: Place) -> Rows:
        component = self.piece.components[place.node]
        match component.options:
            case FilterOptions() as options:
                return filter.apply(rows, place, options, self._scope)
        if component.module == "link.meta_parser":
            return meta_parser.apply(rows, place)
        raise ConfigError(f"{place.node}: {component.module} is not there yet in this version")

    def _ended(self, rows: Rows) -> DataFrame:
        ends = [self.piece.places[index] for index in sorted(rows.live)]
        assert all(place.is_last for place in ends), "every link has done its work"
        sinks = [one for one in ends if one.kind in ("sink", "cut")]
        return rows.df.selectExpr(
            *EVENT,
            f"{AT} AS place",
            f"{_by_place(sinks, lambda one: one.node)} AS sink",
            f"{_by_place(ends, lambda one: one.status)} AS status",
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
