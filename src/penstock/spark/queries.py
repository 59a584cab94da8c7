"""A user's query over `input`, changed so that every row keeps the id of the event it comes from.

Spark's parser says where in the text each SELECT list ends. There a column is added that carries the whole
event, `_penstock_0` (in inner queries `_penstock_1`, ...), all the way from `input` to the top. That works for
queries whose rows each come from one row of `input`: SELECT, WHERE, joins with other tables, LATERAL VIEW,
UNION ALL, subqueries and WITH. Where rows of several events become one (GROUP BY, DISTINCT) nobody could
say whose the result is; and what LIMIT keeps would depend on how messages happen to fall into batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.errors import reason_of
from penstock.spark.parsing import children, edited, kind, lenient_edits, listed, parse_plan, span
from penstock.spark.rows import HIDDEN

INPUT = "input"
ORIGIN = f"{HIDDEN}origin"
"""The column of `input` that holds the event."""

_THROUGH = frozenset(
    {"Filter", "Generate", "PipeOperator", "SubqueryAlias", "UnresolvedHint", "UnresolvedWith"}
)
_INSTEAD = {
    "Aggregate": "link.aggregate groups",
    "Distinct": "link.dedupe drops repeats",
    "Deduplicate": "link.dedupe drops repeats",
    "GlobalLimit": "link.throttler limits, and link.filter chooses",
    "LocalLimit": "link.throttler limits, and link.filter chooses",
    "Offset": "link.filter chooses",
    "Sort": "order is kept within a stream, and promised nowhere else",
    "Sample": "link.filter chooses",
    "UnresolvedHaving": "link.aggregate groups",
}


@dataclass(frozen=True, slots=True)
class Query:
    """`text` reads the table `{view}`; its column `origin` carries the event."""

    text: str
    origin: str

    def over(self, view: str) -> str:
        return self.text.replace(_VIEW, view)


_VIEW = f"{HIDDEN}view"


def prepare(spark: SparkSession, text: str, where: str) -> Query:
    return _Preparation(spark, text, where).run()


class _Preparation:
    def __init__(self, spark: SparkSession, text: str, where: str) -> None:
        self._text = text
        self._where = where
        try:
            self._plan = parse_plan(spark, text)
        except ParseException as error:
            raise ConfigError(f"{where}: {reason_of(error)}") from None
        self._edits: list[tuple[int, int, str]] = []
        self._named: dict[str, Any] = {}  # what WITH defines
        self._columns: dict[str, str] = {}  # of those: the column that carries the event
        self._count = 0

    def run(self) -> Query:
        origin = self._carry(self._plan)
        if origin is None:
            raise self._refused("it does not read `input`")
        return Query(edited(self._text, [*self._edits, *self._variants()]), origin)

    def _carry(self, node: Any) -> str | None:
        """Bring the event's column up to the node's output; its name there, None if it is not below."""
        match kind(node):
            case "UnresolvedRelation":
                return self._relation(node, f" AS {INPUT}")
            case "SubqueryAlias" if kind(children(node)[0]) == "UnresolvedRelation":
                return self._relation(children(node)[0], "")  # the query names it itself
            case "Project":
                below = self._carry(children(node)[0])
                return None if below is None else self._project(node, below)
            case "Union":
                return self._union(node)
            case "Join" | "LateralJoin" | "AsOfJoin":
                return self._join(node)
            case name if name in _THROUGH:
                if name == "UnresolvedWith":
                    self._define(node)
                return self._carry(children(node)[0])
            case name:
                if not any(self._carry(child) for child in children(node)):
                    return None
                hint = _INSTEAD.get(name, "split it into several links")
                raise self._refused(f"{name} cannot tell which event a row comes from; {hint}")

    def _relation(self, node: Any, alias: str) -> str | None:
        name = ".".join(map(str, listed(node.multipartIdentifier()))).lower()
        if name in self._named:
            if name not in self._columns:
                found = self._carry(self._named[name])
                if found is None:
                    return None
                self._columns[name] = found
            return self._columns[name]
        if name != INPUT:
            return None
        self._edits.append((*span(node), f"{_VIEW}{alias}"))
        return ORIGIN

    def _project(self, node: Any, below: str) -> str:
        found = f"{HIDDEN}{self._count}"
        self._count += 1
        last = listed(node.projectList())[-1]
        if kind(last) == "UnresolvedAlias":  # it has no place of its own
            last = children(last)[0]
        _, stop = span(last)
        self._edits.append((stop, stop, f", {below} AS {found}"))
        return found

    def _union(self, node: Any) -> str | None:
        found = [self._carry(child) for child in children(node)]
        if all(one is None for one in found):
            return None
        if any(one is None for one in found):
            raise self._refused("one side of UNION does not read `input`")
        # The sides' columns go together by position: ours is the last of each, whatever its name.
        return found[0]

    def _join(self, node: Any) -> str | None:
        found = [one for one in map(self._carry, children(node)) if one is not None]
        if len(found) > 1:
            raise self._refused("it joins `input` with itself; use link.join")
        return found[0] if found else None

    def _define(self, node: Any) -> None:
        relations = node.cteRelations()
        for index in range(relations.size()):
            pair = relations.apply(index)
            self._named[str(pair._1()).lower()] = pair._2()

    def _variants(self) -> list[tuple[int, int, str]]:
        found = []
        waiting = [self._plan, *self._named.values()]
        while waiting:
            node = waiting.pop()
            waiting += children(node)
            for expression in listed(node.expressions()):
                found += lenient_edits(expression, self._text)
        return found

    def _refused(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._where}: the query cannot be run event by event: {reason}")
