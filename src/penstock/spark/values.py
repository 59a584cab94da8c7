"""Payloads to values, as Spark SQL: what a link sees of a payload, by the codec in force.

Spark's own JSON parsers stop after the first value, and forgive what should be refused. So the text is put
into an array, with a hash of itself behind it: only if the payload is one whole JSON value does the array
have that hash as its second element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType, StringType, StructField, StructType, VariantType

from penstock.codecs.options import CsvOptions, JsonOptions, MsgpackOptions, StringOptions
from penstock.config.flow import Stage
from penstock.errors import ConfigError
from penstock.flow.plan import Form
from penstock.spark import sql
from penstock.spark.errors import reason_of
from penstock.spark.rows import HIDDEN

DECODED = f"{HIDDEN}decoded"
MARK = f"{HIDDEN}mark"
BRIDGED = f"{HIDDEN}text"
VALUE = "value"
TEXT = "CAST(payload AS string)"
_HASH = "xxhash64(payload)"


@dataclass(frozen=True, slots=True)
class Shape:
    """The codec that payloads are in (None: mere bytes), and a value's columns where they are known."""

    codec: Stage | None = None
    columns: StructType | None = None


Shapes = Mapping[tuple[str, ...], Shape]
"""By `Form.shape`: what links have computed."""


def shape_of(form: Form, shapes: Shapes, where: str) -> Shape:
    """What payloads of this form really are."""
    if form.wraps:
        return Shape()
    if form.shape is not None:
        return shapes[form.shape]
    if form.codec is None or form.codec.name == "binary":
        return Shape()
    return Shape(form.codec, own_columns(form.codec, where))


def own_columns(codec: Stage, where: str) -> StructType | None:
    """The columns that a codec's options speak of."""
    match codec.options:
        case JsonOptions() | MsgpackOptions() as options if options.schema_ddl is not None:
            return _columns(options.schema_ddl, where)
        case CsvOptions() as options if options.columns:
            return StructType([StructField(one, StringType()) for one in options.columns])
    return None


def _columns(ddl: str, where: str) -> StructType:
    try:
        found = StructType.fromDDL(ddl)
    except PySparkException as error:
        raise ConfigError(f"{where}: the columns {ddl!r}: {reason_of(error)}") from None
    if not isinstance(found, StructType):
        raise ConfigError(f"{where}: the columns {ddl!r}: expected `name TYPE, name TYPE`")
    return found


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read payloads: SQL about the columns of an event, and about those that were added before.

    First `_penstock_text`, if the codec is a bridge: its JSON. Then `_penstock_decoded`: `decode`.
    """

    value: str | None = None  # None: there is nothing but the bytes
    type: DataType | None = None
    valid: str | None = None
    decode: str | None = None
    bridge: Stage | None = None
    fields: tuple[tuple[str, str], ...] = ()  # of the value, where it is a struct: names and SQL


def reading(shape: Shape) -> Reading:
    codec, columns = shape.codec, shape.columns
    match codec.options if codec is not None else None:
        case None:
            return Reading()
        case JsonOptions():
            utf8 = f"is_valid_utf8({TEXT})"
            return _variant(TEXT, utf8) if columns is None else _json(columns, TEXT, utf8)
        case StringOptions() as options:
            return _string(options.encoding)
        case CsvOptions() as options if columns is not None:
            return _csv(columns, options)
    known = f"{BRIDGED} IS NOT NULL"
    found = _variant(BRIDGED, known) if columns is None else _json(columns, BRIDGED, known)
    return Reading(found.value, found.type, found.valid, found.decode, codec, found.fields)


def _json(columns: StructType, text: str, also: str) -> Reading:
    schema = f"ARRAY<STRUCT<{_ddl(columns)}, `{MARK}` BIGINT>>"
    strict = sql.options({"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"})
    end = sql.text(f',{{"{MARK}":')
    whole = f"concat('[', {text}, {end}, {_HASH}, '}}]')"
    fields = tuple((one.name, f"{DECODED}[0].{sql.name(one.name)}") for one in columns)
    return Reading(
        value=_struct(fields),
        type=columns,
        valid=f"size({DECODED}) = 2 AND {DECODED}[1].`{MARK}` = {_HASH}"
        f" AND {DECODED}[0] IS NOT NULL AND {also}",
        decode=f"from_json({whole}, {sql.text(schema)}, {strict})",
        fields=fields,
    )


def _variant(text: str, also: str) -> Reading:
    return Reading(
        value=f"variant_get({DECODED}, '$[0]', 'variant')",
        type=VariantType(),
        valid=f"try_variant_get({DECODED}, '$[1]', 'bigint') = {_HASH} AND {also}",
        decode=f"try_parse_json(concat('[', {text}, ',', {_HASH}, ']'))",
    )


def _string(encoding: str) -> Reading:
    value, valid = TEXT, f"is_valid_utf8({TEXT})"
    if encoding == "latin-1":
        value, valid = "decode(payload, 'ISO-8859-1')", "true"
    elif encoding == "ascii":
        valid += f" AND length({TEXT}) = octet_length(payload)"
    return Reading(value, StringType(), valid)


def _csv(columns: StructType, options: CsvOptions) -> Reading:
    schema = f"{_ddl(columns)}, `{MARK}` STRING"
    found = csv_options(options) | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MARK}
    fields = tuple((one.name, _csv_field(one)) for one in columns)
    some = "" if len(columns) == 1 else " AND octet_length(payload) > 0"
    return Reading(
        value=_struct(fields),
        type=columns,
        valid=f"{DECODED}.`{MARK}` IS NULL AND is_valid_utf8({TEXT}){some}",
        decode=f"from_csv({TEXT}, {sql.text(schema)}, {sql.options(found)})",
        fields=fields,
    )


def csv_options(options: CsvOptions) -> dict[str, str]:
    return {"sep": options.delimiter, "quote": options.quote, "escape": options.quote}


def _ddl(columns: StructType) -> str:
    return ", ".join(f"{sql.name(one.name)} {one.dataType.simpleString()}" for one in columns)


def _csv_field(column: StructField) -> str:
    """Spark takes an empty field for NULL; text is empty then."""
    found = f"{DECODED}.{sql.name(column.name)}"
    return f"coalesce({found}, '')" if isinstance(column.dataType, StringType) else found


def _struct(fields: Sequence[tuple[str, str]]) -> str:
    parts = ", ".join(f"{sql.text(name)}, {found}" for name, found in fields)
    return f"named_struct({parts})"
