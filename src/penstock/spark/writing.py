"""Columns to payloads, as Spark SQL: how what a link has computed is written, by the codec in force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VariantType,
)

from penstock.codecs.options import CsvOptions, JsonOptions, StringOptions
from penstock.config.flow import Stage
from penstock.errors import ConfigError
from penstock.spark import sql
from penstock.spark.values import VALUE, Shape, csv_options

JSON = Stage("json", JsonOptions(), True)
"""What columns are written in where no codec is in force."""

_NESTED = (ArrayType, MapType, StructType, VariantType)
_CHARSETS = {"latin-1": ("ISO-8859-1", "ff"), "ascii": ("US-ASCII", "7f")}


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a link has computed."""

    name: str
    sql: str
    type: DataType


@dataclass(frozen=True, slots=True)
class Written:
    """SQL for the payload; with a `bridge`, for the JSON text that its codec makes a payload of.

    NULL where a value cannot be written.
    """

    sql: str
    shape: Shape
    bridge: Stage | None = None


def written(columns: Sequence[Column], codec: Stage | None, where: str) -> Written:
    if codec is None or codec.name == "binary":
        if len(columns) == 1 and isinstance(columns[0].type, (StringType, BinaryType)):
            return Written(f"CAST({columns[0].sql} AS binary)", Shape())
        codec = JSON
    whole = len(columns) == 1 and columns[0].name.lower() == VALUE
    fields = StructType([StructField(one.name, one.type) for one in columns])
    shape = Shape(codec, None if whole else fields)
    match codec.options:
        case JsonOptions():
            return Written(f"CAST({_json(columns, whole)} AS binary)", shape)
        case StringOptions() as options:
            return Written(_string(columns, options.encoding, where), Shape(codec))
        case CsvOptions() as options if not whole and _is_flat(columns):
            text = f"to_csv({_struct(columns)}, {sql.options(csv_options(options))})"
            return Written(f"CAST({text} AS binary)", shape)
    return Written(_json(columns, whole, nulls=True), shape, bridge=codec)


def as_text(columns: Sequence[Column]) -> str:
    """Any value as text: a single one as it is, several as JSON."""
    if len(columns) == 1 and not isinstance(columns[0].type, _NESTED):
        return f"CAST({columns[0].sql} AS string)"
    return _json(columns, len(columns) == 1 and columns[0].name.lower() == VALUE)


def _json(columns: Sequence[Column], whole: bool, *, nulls: bool = False) -> str:
    found = _struct(columns)
    if whole:
        nested = isinstance(columns[0].type, _NESTED)
        found = columns[0].sql if nested else f"CAST({columns[0].sql} AS variant)"
        if isinstance(columns[0].type, NullType):
            return "'null'"
    options = f", {sql.options({'ignoreNullFields': 'false'})}" if nulls else ""
    return f"coalesce(to_json({found}{options}), 'null')"


def _struct(columns: Sequence[Column]) -> str:
    parts = ", ".join(f"{sql.text(one.name)}, {one.sql}" for one in columns)
    return f"named_struct({parts})"


def _string(columns: Sequence[Column], encoding: str, where: str) -> str:
    if len(columns) != 1 or isinstance(columns[0].type, _NESTED):
        found = ", ".join(f"{one.name} {one.type.simpleString()}" for one in columns)
        raise ConfigError(
            f"{where}: the codec string holds one text, not the columns {found}; compute one, or change "
            "the codec with link.encode before"
        )
    text = f"CAST({columns[0].sql} AS string)"
    if encoding not in _CHARSETS:
        return f"CAST({text} AS binary)"
    charset, last = _CHARSETS[encoding]
    # Spark's `encode` raises on letters that the charset lacks; one of them must not stop a flow.
    return f"CASE WHEN {text} RLIKE '^[\\\\x00-\\\\x{last}]*$' THEN encode({text}, '{charset}') END"


def _is_flat(columns: Sequence[Column]) -> bool:
    return not any(isinstance(one.type, (*_NESTED, BinaryType)) for one in columns)
