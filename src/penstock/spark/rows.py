"""The rows of a piece between its links: one DataFrame, in which a column says where each row stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

from penstock.errors import ConfigError
from penstock.flow.plan import Place, Route, leads_to
from penstock.sinks.interface import EVENTS
from penstock.spark import routes, sql
from penstock.spark.errors import reason_of
from penstock.spark.routes import NOTHING

EVENT = tuple(EVENTS.names)
"""The columns of an event."""

HIDDEN = "_penstock_"
"""Begins the names of columns that are ours; no link shows them to the user."""

AT = f"{HIDDEN}at"
REASON = f"{HIDDEN}reason"
COUNTS = -2
"""The place of rows that are no events: they carry counts to the coordinator."""

VALID = f"{HIDDEN}valid"
KEEP = f"{HIDDEN}keep"


@dataclass(frozen=True, slots=True)
class Rows:
    """`live` are the places at which rows can stand: it is known before any row is.

    `kept` are the event's columns that are still as the log has them, of rows that are still in the log's order:
    they need not travel, since whoever has the offset can read them (see `spark.fetching`). A link that
    makes its rows in a way of its own keeps none.
    """

    df: DataFrame
    live: frozenset[int]
    kept: frozenset[str] = frozenset()

    @classmethod
    def start(cls, df: DataFrame, start: tuple[tuple[str, Route], ...]) -> Rows:
        """Rows as they come from topics (or from one head), sent to their first places."""
        wide = any(routes.is_wide(route) for _, route in start)
        turn = routes.many if wide else routes.one
        *others, (_, last) = start
        where = sql.case("topic", [(sql.text(t), turn(route)) for t, route in others], turn(last))
        at = f"explode({where}) AS {AT}" if wide else f"{where} AS {AT}"
        df = df.selectExpr(*EVENT, at, f"CAST(NULL AS string) AS {REASON}")
        live = frozenset[int]().union(*(leads_to(route) for _, route in start))
        return cls(df, live, frozenset(EVENT))

    def only_at(self, place: Place) -> bool:
        """Whether all rows stand there."""
        return self.live == {place.index}

    def with_columns(self, place: Place, columns: Mapping[str, str]) -> Rows:
        """More columns: computed for rows that stand at the place, null for the others."""
        added = [f"{self._here(place, found)} AS {sql.name(n)}" for n, found in columns.items()]
        return Rows(select(self.df, place, "*", *added), self.live, self.kept)

    def with_function(self, place: Place, column: str, function: Any, argument: str) -> Rows:
        """One more column, computed in Python: for rows that stand at the place, null for the others."""
        found = function(expr(self._here(place, argument)))
        return Rows(self.df.withColumn(column, found), self.live, self.kept)

    def _here(self, place: Place, found: str) -> str:
        return found if self.only_at(place) else f"CASE WHEN {AT} = {place.index} THEN {found} END"

    def go_on(
        self,
        place: Place,
        route: Route,
        *,
        changes: Mapping[str, str] | None = None,
        valid: str | None = None,
        keep: str | None = None,
    ) -> Rows:
        """Rows at the place change and go their way; all others stay as they are.

        Where `valid` is not true, a row goes to the place's `invalid`, unchanged. Where `keep` is not true,
        it vanishes. Columns that a link added for itself are gone afterwards.
        """
        df = self.df
        if changes:
            # Both are asked twice: of what is to change, and of where it goes.
            asked = {VALID: valid, KEEP: keep}
            found = [f"coalesce({one}, false) AS {name}" for name, one in asked.items() if one]
            valid, keep = valid and VALID, keep and KEEP
            here = [] if self.only_at(place) else [f"{AT} = {place.index}"]
            guard = " AND ".join([*here, *(one for one in (valid, keep) if one)])
            columns = [_changed(one, changes.get(one), guard) for one in EVENT]
            if found:
                df = select(df, place, "*", *found)
            df = select(df, place, *columns, AT, REASON, *(one for one in (valid, keep) if one))
        # Only now: routes look at an event as it leaves the link.
        where, wide = self._where(place, route, valid, keep)
        at = f"explode({where}) AS {AT}" if wide else f"{where} AS {AT}"
        live = (self.live - {place.index}) | leads_to(route)
        if valid is not None and place.invalid is not None:
            live |= {place.invalid}
        kept = self.kept - frozenset(changes or ())
        return Rows(select(df, place, *EVENT, at, REASON), frozenset(live), kept)

    def refuse(self, place: Place, valid: str) -> Rows:
        """Rows at the place that are not valid end; nothing else changes."""
        assert place.invalid is not None, "a link whose rows can be invalid has a place for them"
        here = "" if self.only_at(place) else f"{AT} = {place.index} AND "
        at = f"CASE WHEN {here}NOT coalesce({valid}, false) THEN {place.invalid} ELSE {AT} END"
        return Rows(self.df.withColumn(AT, expr(at)), self.live | {place.invalid}, self.kept)

    def apart(self, place: Place) -> tuple[DataFrame, Rows | None]:
        """The rows that stand at the place, and the others, if there can be any."""
        if self.only_at(place):
            return self.df, None
        others = [column for column in self.df.columns if column != AT]
        columns = [*map(sql.name, others)]
        here = (
            f"explode(CASE WHEN {AT} = {place.index} THEN array({AT}) ELSE {NOTHING} END) AS {AT}"
        )
        away = (
            f"explode(CASE WHEN {AT} <> {place.index} THEN array({AT}) ELSE {NOTHING} END) AS {AT}"
        )
        rest = Rows(self.df.selectExpr(*columns, away), self.live - {place.index})
        return self.df.selectExpr(*columns, here), rest

    def _where(
        self, place: Place, route: Route, valid: str | None, keep: str | None
    ) -> tuple[str, bool]:
        """Where rows go, and whether that is an array."""
        wide = routes.is_wide(route) or keep is not None
        cases = []
        if not self.only_at(place):
            cases.append((f"{AT} <> {place.index}", f"array({AT})" if wide else AT))
        if valid is not None:
            assert place.invalid is not None, (
                "a link whose rows can be invalid has a place for them"
            )
            wrong = f"array({place.invalid})" if wide else str(place.invalid)
            cases.append((f"NOT coalesce({valid}, false)", wrong))
        if keep is not None:
            cases.append((f"NOT coalesce({keep}, false)", NOTHING))
        on = routes.many(route) if wide else routes.one(route)
        whens = " ".join(f"WHEN {condition} THEN {result}" for condition, result in cases)
        return (f"CASE {whens} ELSE {on} END" if cases else on), wide


def _changed(column: str, found: str | None, guard: str) -> str:
    if found is None:
        return column
    return f"{f'CASE WHEN {guard} THEN {found} ELSE {column} END' if guard else found} AS {column}"


def select(df: DataFrame, place: Place, *columns: str) -> DataFrame:
    """`selectExpr`, with errors that say which component's expression is wrong."""
    try:
        return df.selectExpr(*columns)
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"{place.node}: {reason_of(error)}") from None
