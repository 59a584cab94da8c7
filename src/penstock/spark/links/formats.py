"""link.encode and link.decode, and what sinks with a codec of their own are given.

`encode` writes the value anew, in another codec. `decode` changes nothing but how payloads are read from
there on, and refuses those that cannot be. Both also know base64, which wraps bytes whatever they are.
"""

from __future__ import annotations

from penstock.config.flow import Stage
from penstock.errors import ConfigError, InvalidMessage
from penstock.flow.plan import Place
from penstock.interceptors.base64 import Base64
from penstock.links.payload import FormatOptions
from penstock.spark.rows import HIDDEN, Rows
from penstock.spark.scope import PACKED, Scope
from penstock.spark.values import TEXT, Shape, own_columns
from penstock.spark.writing import Written, as_text, written

_BYTES = f"{HIDDEN}bytes"
# Spark's base64 breaks lines.
_BASE64 = "translate(base64({0}), '\\r\\n', '')"


def encode(rows: Rows, place: Place, options: FormatOptions, scope: Scope) -> Rows:
    stage = options.stage()
    if stage is None:
        changes = {"payload": f"CAST({_BASE64.format('payload')} AS binary)"}
        return rows.go_on(place, place.routes[0], changes=changes)
    return rewrite(rows, place, stage, scope)


def decode(rows: Rows, place: Place, options: FormatOptions, scope: Scope) -> Rows:
    stage = options.stage()
    if stage is None:
        rows = rows.with_columns(place, {_BYTES: f"try_to_binary({TEXT}, 'base64')"})
        # Spark forgives missing padding and spaces; what was packed with care reads the same again.
        valid = f"{_BASE64.format(_BYTES)} = {TEXT}"
        return rows.go_on(place, place.routes[0], valid=valid, changes={"payload": _BYTES})
    shape = Shape() if stage.name == "binary" else Shape(stage, own_columns(stage, place.node))
    found, rows = scope.read(rows, place, shape)
    return rows.go_on(place, place.routes[0], valid=found.valid)


def rewrite(rows: Rows, place: Place, target: Stage, scope: Scope) -> Rows:
    """The same values in another codec."""
    shape, route = scope.shape(place), place.routes[0]
    if target.name == "binary" or _same(shape.codec, target):
        return rows.go_on(place, route)
    if target.name == "string" and (shape.codec is None or shape.codec.name in ("json", "csv")):
        # They are text already, but for those that never were.
        found, rows = scope.read(rows, place, Shape(target))
        return rows.go_on(place, route, valid=found.valid)
    if shape.codec is None:
        raise ConfigError(
            f"{place.node}: payloads that are mere bytes cannot be written as {target.name}; say how to "
            "read them, with `codec` on the receiver or with link.decode"
        )
    opened = scope.open_all(rows, place)
    if target.name == "string":
        packed = Written(f"CAST({as_text(opened.columns)} AS binary)", Shape(target))
    else:
        packed = written(opened.columns, target, place.node)
    rows = scope.pack(opened.rows, place, packed)
    valid = " AND ".join(one for one in (opened.reading.valid, f"{PACKED} IS NOT NULL") if one)
    return rows.go_on(place, route, valid=valid, changes={"payload": PACKED})


def _same(one: Stage | None, other: Stage) -> bool:
    """Whether payloads are the same in both: options that only say which columns there are do not count."""
    if one is None or one.name != other.name:
        return False
    columns = ("schema_ddl", "columns")
    mine, theirs = one.options.wire(), other.options.wire()
    return all(mine[name] == theirs[name] for name in mine if name not in columns)


def why_not_base64(payload: bytes) -> str:
    try:
        Base64().whole(payload)
    except InvalidMessage as error:
        return str(error).removeprefix("base64: ")
    return "not base64: bits are set that stand for nothing"
