"""From a piece of a plan to Spark: rows in, rows that know where they end out. One DataFrame, one scan.

Compiled once, when the flow starts, against no rows at all: an expression that Spark does not understand is
found then, and said with the component's name. Applied to every micro-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
from penstock.spark import sql
from penstock.spark.columns import COLUMNS
from penstock.spark.ends import Ends
from penstock.spark.fetching import Fetch
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
from penstock.spark.needed import needed, probe
from penstock.spark.rows import AT, EVENT, REASON, Rows
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

_SIZED = frozenset({"key", "meta", "payload"})
"""Columns without a bound on their size."""

_BLANKS = {
    "time": "timestamp_micros(0)",
    "peer": "''",
    "stream": "''",
    "seq": "0L",
    "key": "CAST(NULL AS binary)",
    "meta": "CAST(map() AS map<string, string>)",
    "payload": "X''",
}


class Compiled:
    """One piece, ready for rows.

    `shapes` are the columns that links have computed, of this piece and of those before it: hand the same
    dictionary to every piece of a plan, in the plan's order. With the `data_dir` of the topics, columns that no link
    looks at stay there until the task that needs them: then rows must be those of `reads`, made whole by `widened`.
    """

    def __init__(
        self,
        spark: SparkSession,
        piece: Piece,
        shapes: dict[tuple[str, ...], Shape] | None = None,
        data_dir: Path | None = None,
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
        # What comes out of state may have been read long ago: the log need not have it any more.
        self._fetches = data_dir is not None and self.head is None
        rows = self._rows(probe(spark, self.given), {}, None)
        self.reads: tuple[str, ...] = tuple(self.given.fieldNames())
        self._fetched = tuple(name for name in EVENT if name not in rows.columns)
        fetch = None
        if data_dir is not None and self._fetched:
            fetch = Fetch(data_dir, self._fetched, self._topic)
            looked_at = self._position.union(needed(rows, self.given))
            self.reads = tuple(name for name in self.reads if name in looked_at)
        self.ends = Ends.of(piece, self._scope.shapes, fetch)

    def rows(
        self,
        df: DataFrame,
        counters: Mapping[str, int] | None = None,
        refused: DataFrame | None = None,
    ) -> DataFrame:
        """Columns of an event, the `place` where it ended (see `flow.plan`) and, if that needs words, the `reason`.
        `Ends` makes of them what a task takes: the columns that have not travelled, sink, status and branch.

        `counters` is where links that count begin. Rows at the place COUNTS are no events: `reason` names a
        counter, `seq` is where it has come to.

        Of a piece with a head, `df` is what that gives, and `refused` what it did not let in.

        Call `release` when the batch is done.
        """
        if self._scope.splits or self.head is not None:
            # Several branches read it; what it reads must be read once. And what comes out of state is the
            # same for all sinks, also if the job has to run again for one of them.
            df = self._kept = df.persist()
        return self._rows(df, counters or {}, refused)

    @property
    def _topic(self) -> str | None:
        """Of all rows, if it is one."""
        topics = {source.topic for source in self.piece.sources}
        return topics.pop() if len(topics) == 1 else None

    @property
    def _position(self) -> frozenset[str]:
        """What no row can do without."""
        return frozenset({"partition", "offset", *(["topic"] if self._topic is None else [])})

    @property
    def light(self) -> bool:
        """Whether nothing of any size travels to Python: batches then need no limit on their bytes."""
        return _SIZED.issubset(self._fetched) and not {"key", "payload"} & {*self.reads}

    def widened(self, df: DataFrame) -> DataFrame:
        """Rows of the columns `reads`, with all that links may name. Nobody looks at those that are added."""
        if len(self.reads) == len(self.given):
            return df
        blanks = _BLANKS | {"topic": sql.text(self._topic or "")}
        columns = [(name, name in self.reads) for name in self.given.fieldNames()]
        return df.selectExpr(*(n if here else f"{blanks[n]} AS {n}" for n, here in columns))

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
        ends = [self.piece.places[index] for index in sorted(rows.live) if index >= 0]
        assert all(place.is_last for place in ends), "every link has done its work"
        stays = rows.kept - self._position if self._fetches else frozenset[str]()
        travels = [name for name in EVENT if name not in stays]
        return rows.df.selectExpr(*travels, f"{AT} AS place", f"{self._reason(ends)} AS reason")

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
