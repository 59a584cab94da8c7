"""What a link with state is to the piece of a flow that it is the head of.

It works in two places:

1. `stream`, on the streaming DataFrame, where Spark keeps state. What comes out has the columns of an event,
   and more where the link computes a value.
2. `finish`, on what came out, in the batch: a value is written, rows go their way.

Rows that the state must not see (`refused`: their payload cannot be read, or they come too late) are found by
reading the batch a second time: what Spark drops before its state it does not show.

Nothing here may depend on chance or on a clock. A batch that runs again has the same rows, the same state and
the same watermark, and must give the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType, VariantType

from penstock.errors import ConfigError
from penstock.flow.plan import Form, Piece, Place, Source
from penstock.spark import sql
from penstock.spark.clock import NOT_A_TICK
from penstock.spark.errors import reason_of
from penstock.spark.rows import AT, EVENT, HIDDEN, REASON, Rows
from penstock.spark.scope import Opened, Scope
from penstock.spark.writing import Column
from penstock.status import Status

OUT = f"{HIDDEN}out"
"""What a head has computed, as a struct."""

ORIGIN = ("time", "topic", "partition", "offset", "peer", "stream", "seq")
"""What an event derived from several has from the last of them, in the order that says which is the last."""

Inputs = Mapping[str, DataFrame]
"""By the entry of a source. A head that does not tell its inputs apart has all of them under the first's."""


class Head(Protocol):
    @property
    def output_mode(self) -> Literal["append", "update"]: ...

    @property
    def ticks(self) -> bool:
        """Whether something comes out merely because time passes."""

    def stream(self, inputs: Inputs) -> DataFrame: ...

    def finish(self, rows: Rows) -> Rows: ...

    def refused(self, inputs: Inputs, watermark_ms: int) -> DataFrame | None:
        """Rows of the batch that ended before the state, as `Rows` has them; None if there are none ever.

        `watermark_ms` is what Spark holds rows of this batch against.
        """


@dataclass(frozen=True, slots=True)
class Entrance:
    """What heads share: how rows come to them."""

    piece: Piece
    scope: Scope

    @property
    def place(self) -> Place:
        return self.piece.entrance

    def sources(self) -> tuple[Source, ...]:
        return self.piece.sources

    def open(self, df: DataFrame, source: Source, expressions: Sequence[str]) -> Opened:
        """Events that show what expressions speak of; those that cannot be read are still among them."""
        # Each source has a form of its own, and so a place of its own.
        index = -10 - self.piece.sources.index(source)
        place = replace(self.place, index=index, form=source.form)
        columns = (*EVENT, f"{index} AS {AT}", f"CAST(NULL AS string) AS {REASON}")
        return self.scope.open(
            Rows(df.selectExpr(*columns), frozenset({index})), place, expressions
        )

    def readable(self, opened: Opened) -> DataFrame:
        """Without those that cannot be read, and without ticks of the clock."""
        valid = opened.reading.valid
        df = opened.rows.df.where(NOT_A_TICK)
        return df if valid is None else df.where(f"coalesce({valid}, false)")

    def with_keys(self, df: DataFrame, keys: Mapping[str, str]) -> DataFrame:
        """More columns, of types that state can be kept by."""
        found = self.select(
            df, "*", *(f"{code} AS {sql.name(name)}" for name, code in keys.items())
        )
        for name in keys:
            if isinstance(found.schema[name].dataType, VariantType):
                found = found.withColumn(name, found[name].cast("string"))
        return found

    def select(self, df: DataFrame, *columns: str) -> DataFrame:
        with self.naming():
            return df.selectExpr(*columns)

    def naming(self) -> Naming:
        return Naming(self.place.node)

    def refused(
        self,
        inputs: Inputs,
        expressions: Mapping[str, Sequence[str]],
        late: str | None,
        reason: str,
        passes: str | None = None,
    ) -> DataFrame | None:
        """`late` is SQL about an event: whether Spark drops it for its age. `passes`: whether it goes on
        without the state having seen it."""
        invalid = self.place.invalid
        too_late = self.piece.end_at(self.place.node, Status.TIMED_OUT).index
        found: list[DataFrame] = []
        for source in self.piece.sources:
            if source.entry not in inputs:
                continue
            opened = self.open(inputs[source.entry], source, expressions[source.entry])
            cases = []
            if opened.reading.valid is not None:
                cases.append(f"WHEN NOT coalesce({opened.reading.valid}, false) THEN {invalid}")
            if passes is not None:
                cases.append(f"WHEN {passes} THEN {self.place.index}")
            if late is not None:
                cases.append(f"WHEN {late} THEN {too_late}")
            if not cases:
                continue
            at = f"CASE {' '.join(cases)} ELSE -1 END AS {AT}"
            told = f"CASE {AT} WHEN {too_late} THEN {sql.text(reason)} END AS {REASON}"
            placed = opened.rows.df.where(NOT_A_TICK).selectExpr(*EVENT, at).where(f"{AT} >= 0")
            found.append(placed.selectExpr(*EVENT, AT, told))
        if not found:
            return None
        whole, *others = found
        for other in others:
            whole = whole.unionByName(other)
        return whole

    def write(self, rows: Rows) -> Rows:
        """Rows with `_penstock_out` become events again, and go on."""

        def computed() -> StructType:
            out = rows.df.schema[OUT].dataType
            assert isinstance(out, StructType)
            return out

        place = self.place
        codec = self.scope.shape(place).codec
        if (
            codec is not None and codec.name == "string"
        ):  # one text does not hold several columns: JSON does
            place = replace(place, form=Form())
        fields = self.scope.output(place, computed)
        columns = [Column(one.name, f"{OUT}.{sql.name(one.name)}", one.dataType) for one in fields]
        return self.scope.leave(rows, place, columns, None)


class Naming:
    """Errors of Spark's within say which component's expression is wrong."""

    def __init__(self, node: str) -> None:
        self._node = node

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, AnalysisException | ParseException):
            raise ConfigError(f"{self._node}: {reason_of(error)}") from None


def entries(piece: Piece) -> tuple[Source, ...]:
    """The sources that a head tells apart. What comes from the others comes with the first."""
    assert piece.head is not None
    joins = piece.head.module == "link.join"
    return piece.sources if joins else piece.sources[:1]


def arrived(df: DataFrame, place: Place) -> Rows:
    """What came out of the state, at the head's place."""
    more = [name for name in df.columns if name not in EVENT]
    at = (f"{place.index} AS {AT}", f"CAST(NULL AS string) AS {REASON}")
    return Rows(df.selectExpr(*EVENT, *more, *at), frozenset({place.index}))


def last_of(prefix: str = "") -> str:
    """SQL: what an event derived from several has from the last of them."""
    return f"struct({', '.join(prefix + name for name in ORIGIN)})"


def derived(df: DataFrame, origin: str, out: str) -> DataFrame:
    """An event for each row: `origin` is a struct as `last_of` gives it, `out` the value as a struct."""
    made = {
        "key": "CAST(NULL AS binary)",
        "meta": "CAST(map() AS map<string,string>)",
        "payload": "X''",
    }
    columns = [f"{made.get(name, f'{origin}.{name}')} AS {name}" for name in EVENT]
    return df.selectExpr(*columns, f"{out} AS {OUT}")


def watermarked(df: DataFrame, delay_s: float) -> DataFrame:
    """With a watermark that ticks of the clock move, too.

    Spark moves what is asked of rows to before their watermark, also what it concludes by itself from a join's
    condition: ticks would never get there, and windows and joins would end with the next message only. It does not
    move anything past a column that it cannot compute twice, as long as somebody asks for that column.
    """
    seen = df.withWatermark("time", milliseconds(delay_s))
    return seen.selectExpr("*", f"spark_partition_id() AS {_HERE}").where(f"{_HERE} >= 0")


_HERE = f"{HIDDEN}here"


def milliseconds(seconds: float) -> str:
    """As Spark reads an interval."""
    return f"{round(seconds * 1000)} milliseconds"
