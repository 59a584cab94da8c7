"""Links that work on a DataFrame of their own: rows that stand there are split off, and joined again behind.

Where all rows stand there, nothing is split. Otherwise what the batch reads is read by two branches, so it must
be kept (`Compiled.rows` does) for every row to be read only once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.errors import ConfigError
from penstock.flow.plan import Place
from penstock.spark import sql
from penstock.spark.errors import reason_of
from penstock.spark.queries import ORIGIN
from penstock.spark.rows import AT, EVENT, HIDDEN, REASON, Rows
from penstock.spark.scope import Scope
from penstock.spark.values import VALUE
from penstock.spark.writing import Column

_OUT = f"{HIDDEN}out"


@dataclass(frozen=True, slots=True)
class Given:
    """The columns of the event, of its value, and `_penstock_origin`: the whole event as it came."""

    df: DataFrame


FrameLink = Callable[[Given], tuple[DataFrame, str]]
"""What it gives: a DataFrame, and the name of its column that has `_penstock_origin`."""


def apply(rows: Rows, place: Place, scope: Scope, link: FrameLink) -> Rows:
    opened = scope.open_all(rows, place)
    valid = opened.reading.valid
    split = opened.rows.refuse(place, valid) if valid is not None else opened.rows
    mine, others = split.apart(place)
    scope.splits |= others is not None
    event = ", ".join(EVENT)
    shown = [name for name, _ in opened.reading.fields if name.lower() not in EVENT]
    if opened.reading.value is not None:
        shown = [VALUE, *(name for name in shown if name.lower() != VALUE)]
    given = mine.selectExpr(*EVENT, *map(sql.name, shown), f"struct({event}) AS {ORIGIN}")
    found, origin = link(Given(given))
    try:
        own = found.selectExpr(
            *(f"{sql.name(origin)}.{one}" for one in EVENT), f"struct(*) AS {_OUT}"
        )
    except AnalysisException as error:
        raise ConfigError(f"{place.node}: {reason_of(error)}") from None
    own = own.selectExpr("*", f"{place.index} AS {AT}", f"CAST(NULL AS string) AS {REASON}")

    def computed() -> StructType:
        out = own.schema[_OUT].dataType
        assert isinstance(out, StructType)
        return StructType([one for one in out.fields if not one.name.startswith(HIDDEN)])

    fields = scope.output(place, computed)
    columns = [Column(one.name, f"{_OUT}.{sql.name(one.name)}", one.dataType) for one in fields]
    done = scope.leave(Rows(own, frozenset({place.index})), place, columns, None)
    if others is None:
        return done
    kept = others.df.select(*EVENT, AT, REASON)
    return Rows(kept.unionByName(done.df), others.live | done.live)
