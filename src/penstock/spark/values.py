"""Payloads to values and back, as Spark SQL. What a link sees of a payload, by the codec in force.

Spark's own JSON parsers stop after the first value, and forgive what should be refused. So the text is put
into an array, with a hash of itself behind it: only if the payload is one whole JSON value does the array
have that hash as its second element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from penstock.codecs.options import JsonOptions, StringOptions
from penstock.config.flow import Stage
from penstock.errors import ConfigError
from penstock.flow.plan import Form, Place
from penstock.spark import parsing, sql
from penstock.spark.errors import reason_of
from penstock.spark.rows import EVENT, HIDDEN, Rows, select

DECODED = f"{HIDDEN}decoded"
MARK = f"{HIDDEN}mark"
VALUE = "value"
_TEXT = "CAST(payload AS string)"
_HASH = "xxhash64(payload)"


@dataclass(frozen=True, slots=True)
class Shape:
    """The columns that a link has computed, where they are known; what wrote them, where no codec is."""

    columns: StructType | None
    codec: Stage | None


Shapes = Mapping[str, Shape]
"""By the link that computed them."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read payloads of one form. The SQL is about the columns `payload` and `_penstock_decoded`."""

    decode: str | None  # what to compute first, once
    valid: str | None
    value: str | None  # None: there is nothing but the bytes
    fields: tuple[str, ...] = ()  # of the value, where it is a struct


BYTES = Reading(None, None, None)


def codec_of(form: Form, shapes: Shapes) -> Stage | None:
    """The codec that payloads of this form are really in; None for bytes."""
    if form.wraps:
        return None
    if form.codec is not None:
        return None if form.codec.name == "binary" else form.codec
    shape = _shape_of(form, shapes)
    return None if shape is None else shape.codec


def _shape_of(form: Form, shapes: Shapes) -> Shape | None:
    return None if form.shape is None else shapes.get(form.shape)


def reading(form: Form, shapes: Shapes, place: Place) -> Reading:
    stage = codec_of(form, shapes)
    if stage is None:
        return BYTES
    shape = _shape_of(form, shapes)
    columns = None if shape is None else shape.columns
    match stage.options:
        case JsonOptions() as options:
            if shape is None and options.schema_ddl is not None:
                columns = _columns(options.schema_ddl, place)
            return _variant(_TEXT) if columns is None else _json(columns)
        case StringOptions() as options:
            return _string(options.encoding)
    raise ConfigError(f"{place.node}: the codec {stage.name} cannot be read in a flow yet")


def _columns(ddl: str, place: Place) -> StructType:
    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(f"{place.node}: the columns {ddl!r}: {reason_of(error)}") from None
    if not isinstance(found, StructType):
        raise ConfigError(f"{place.node}: the columns {ddl!r}: expected `name TYPE, name TYPE`")
    return found


def _json(columns: StructType) -> Reading:
    fields = ", ".join(f"{sql.name(one.name)} {one.dataType.simpleString()}" for one in columns)
    schema = f"ARRAY<STRUCT<{fields}, `{MARK}` BIGINT>>"
    strict = sql.options({"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"})
    end = sql.text(f',{{"{MARK}":')
    whole = f"concat('[', {_TEXT}, {end}, {_HASH}, '}}]')"
    names = tuple(one.name for one in columns)
    parts = ", ".join(f"{sql.text(one)}, {DECODED}[0].{sql.name(one)}" for one in names)
    return Reading(
        decode=f"from_json({whole}, {sql.text(schema)}, {strict})",
        valid=f"size({DECODED}) = 2 AND {DECODED}[1].`{MARK}` = {_HASH}"
        f" AND {DECODED}[0] IS NOT NULL AND is_valid_utf8({_TEXT})",
        value=f"named_struct({parts})",
        fields=names,
    )


def _variant(text: str) -> Reading:
    return Reading(
        decode=f"try_parse_json(concat('[', {text}, ',', {_HASH}, ']'))",
        valid=f"try_variant_get({DECODED}, '$[1]', 'bigint') = {_HASH} AND is_valid_utf8({_TEXT})",
        value=f"variant_get({DECODED}, '$[0]', 'variant')",
    )


def _string(encoding: str) -> Reading:
    match encoding:
        case "utf-8":
            return Reading(None, f"is_valid_utf8({_TEXT})", _TEXT)
        case "ascii":
            return Reading(
                None, f"octet_length(regexp_replace({_TEXT}, '[\\\\x00-\\\\x7f]', '')) = 0", _TEXT
            )
    return Reading(None, None, "decode(payload, 'ISO-8859-1')")


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows that show what a link's expressions speak of, and the expressions as Spark should read them."""

    rows: Rows
    valid: str | None
    expressions: list[str]


@dataclass(slots=True)
class Scope:
    """What expressions may speak of, at each link of a piece."""

    shapes: dict[str, Shape]
    # Parsing is a conversation with the JVM: it is done once for each link, not for each batch.
    _parsed: dict[str, tuple[str, set[str]]] = field(default_factory=dict)

    def open(self, rows: Rows, place: Place, expressions: Sequence[str]) -> Opened:
        """Rows with the value's columns beside the event's, if the expressions need any of them.

        The value as a whole is `value`; its fields are columns of their own, but for those that have the
        name of a column of the event (in whatever case: Spark's names have none).
        """
        parsed = [self._parse(rows, place, one) for one in expressions]
        texts = [text for text, _ in parsed]
        if set().union(*(names for _, names in parsed)) <= set(EVENT):
            return Opened(rows, None, texts)
        found = reading(place.form.inside, self.shapes, place)
        if found.decode is not None:
            rows = rows.with_columns(place, {DECODED: found.decode})
        if found.value is None:
            return Opened(rows, found.valid, texts)
        taken = {column.lower() for column in (*EVENT, VALUE)}
        shown = [f"{found.value} AS {VALUE}"]
        for field_name in found.fields:
            if field_name.lower() not in taken:
                column = sql.name(field_name)
                shown.append(f"{DECODED}[0].{column} AS {column}")
        return Opened(Rows(select(rows.df, place, "*", *shown), rows.live), found.valid, texts)

    def _parse(self, rows: Rows, place: Place, text: str) -> tuple[str, set[str]]:
        if text not in self._parsed:
            tree = parsing.parse_expression(rows.df.sparkSession, text, place.node)
            self._parsed[text] = parsing.lenient(tree, text), parsing.names(tree)
        return self._parsed[text]
