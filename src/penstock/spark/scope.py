"""What a link's expressions may speak of, and what becomes of the columns that they compute.

In: the columns of the event, `value` (the payload decoded), and the value's fields as columns of their own.
Where a field has the name of an event's column (in whatever case: Spark's names have none), the bare name is
the event's; the field is `value.name`.

Out: `key` and `meta` change the event's. Position, id and time stay the origin's, whatever is computed. All
other columns are the new value, written by the codec in force; `value` alone is the value itself. Where there
are none, `payload` is the payload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.types import StructType

from penstock.config.flow import Stage
from penstock.errors import ConfigError
from penstock.flow.plan import Place
from penstock.spark import bridges, parsing, sql
from penstock.spark.rows import EVENT, HIDDEN, Rows, select
from penstock.spark.values import BRIDGED, DECODED, VALUE, Reading, Shape, reading, shape_of
from penstock.spark.writing import Column, Written, written

PACKED = f"{HIDDEN}packed"
OURS = "penstock."
"""Begins the names of meta that is the engine's."""

_CHANGEABLE = ("key", "meta")
_EVERYTHING = {"*"}


@dataclass(frozen=True, slots=True)
class Opened:
    """Rows that show what a link's expressions speak of, and the expressions as Spark should read them."""

    rows: Rows
    reading: Reading
    expressions: list[str]

    @property
    def columns(self) -> list[Column]:
        """The value as columns: its fields, or itself."""
        found, kind = self.reading, self.reading.type
        if isinstance(kind, StructType):
            types = [one.dataType for one in kind.fields]
            fields = zip(found.fields, types, strict=True)
            return [Column(name, code, of) for (name, code), of in fields]
        assert found.value is not None
        assert kind is not None
        return [Column(VALUE, found.value, kind)]


@dataclass(slots=True)
class Scope:
    """Of one piece. What takes a conversation with the JVM is done once, not for each batch."""

    shapes: dict[tuple[str, ...], Shape]
    splits: bool = False  # whether any link works on a DataFrame of its own beside others
    _parsed: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    _functions: dict[tuple[str, int], Any] = field(default_factory=dict)
    _outputs: dict[int, StructType] = field(default_factory=dict)

    def shape(self, place: Place) -> Shape:
        return shape_of(place.form, self.shapes, place.node)

    def open(self, rows: Rows, place: Place, expressions: Sequence[str]) -> Opened:
        """Rows with the value's columns beside the event's, if the expressions need any of them."""
        parsed = [self._parse(rows, place, one) for one in expressions]
        texts = [text for text, _ in parsed]
        if set().union(*(names for _, names in parsed)) <= set(EVENT):
            return Opened(rows, Reading(), texts)
        found, rows = self.read(rows, place, self.shape(place))
        if found.value is None:
            return Opened(rows, found, texts)
        taken = {column.lower() for column in (*EVENT, VALUE)}
        fields = [(name, code) for name, code in found.fields if name.lower() not in taken]
        shown = [(VALUE, found.value), *fields]
        columns = [f"{code} AS {sql.name(name)}" for name, code in shown]
        shown_too = Rows(select(rows.df, place, "*", *columns), rows.live, rows.kept)
        return Opened(shown_too, found, texts)

    def open_all(self, rows: Rows, place: Place) -> Opened:
        return self.open(rows, place, ["*"])

    def read(self, rows: Rows, place: Place, shape: Shape) -> tuple[Reading, Rows]:
        """How to read payloads, and rows with the columns that this needs."""
        found = reading(shape)
        if found.bridge is not None:
            decoder = self.function("decode", place, lambda: bridges.decoder(_known(found.bridge)))
            rows = rows.with_function(place, BRIDGED, decoder, "payload")
        if found.decode is not None:
            rows = rows.with_columns(place, {DECODED: found.decode})
        return found, rows

    def function(self, what: str, place: Place, make: Callable[[], Any]) -> Any:
        """A function of Spark that this place needs, made once."""
        if (what, place.index) not in self._functions:
            self._functions[what, place.index] = make()
        return self._functions[what, place.index]

    def output(self, place: Place, found: Callable[[], StructType]) -> StructType:
        """The columns that a link computes: asked of Spark once."""
        if place.index not in self._outputs:
            fields = found()
            names = [name.lower() for name in fields.fieldNames()]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"{place.node}: two columns have the name {twice[0]}; rename one")
            self._outputs[place.index] = fields
        return self._outputs[place.index]

    def leave(self, rows: Rows, place: Place, columns: Sequence[Column], valid: str | None) -> Rows:
        """Rows whose columns were computed become events again, and go on."""
        assert place.into is not None
        assert place.into.shape is not None
        event = {one.name.lower(): one for one in columns if one.name.lower() in EVENT}
        value = [one for one in columns if one.name.lower() not in EVENT]
        changes = {name: event[name].sql for name in _CHANGEABLE if name in event}
        if "key" in changes:
            changes["key"] = f"CAST({changes['key']} AS binary)"
        if "meta" in changes:
            changes["meta"] = _guarded_meta(changes["meta"])
        shape = self.shape(place)
        value = _without_whole(value, shape)
        if value:
            found = written(value, shape.codec, place.node)
            rows = self.pack(rows, place, found)
            shape, changes["payload"] = found.shape, PACKED
            valid = _both(valid, f"{PACKED} IS NOT NULL")
        elif "payload" in event:
            changes["payload"] = f"coalesce(CAST({event['payload'].sql} AS binary), X'')"
        self.shapes[place.into.shape] = shape
        return rows.go_on(place, place.routes[0], valid=valid, changes=changes)

    def pack(self, rows: Rows, place: Place, found: Written) -> Rows:
        """Rows with the new payload as `_penstock_packed`."""
        if found.bridge is None:
            return rows.with_columns(place, {PACKED: found.sql})
        encoder = self.function("encode", place, lambda: bridges.encoder(_known(found.bridge)))
        return rows.with_function(place, PACKED, encoder, found.sql)

    def _parse(self, rows: Rows, place: Place, text: str) -> tuple[str, set[str]]:
        if text == "*":
            return text, _EVERYTHING
        if text not in self._parsed:
            tree = parsing.parse_expression(rows.df.sparkSession, text, place.node)
            self._parsed[text] = parsing.lenient(tree, text), parsing.names(tree)
        return self._parsed[text]


def _known(stage: Stage | None) -> Stage:
    assert stage is not None
    return stage


def _both(one: str | None, other: str) -> str:
    return other if one is None else f"{one} AND {other}"


def _without_whole(columns: list[Column], shape: Shape) -> list[Column]:
    """Beside its fields, the value as a whole came in with a `*`: only those fields of it are missing that
    have the names of an event's columns."""
    whole = [one for one in columns if one.name.lower() == VALUE and one.type == shape.columns]
    if len(columns) == 1 or not whole or shape.columns is None:
        return columns
    hidden = [one for one in shape.columns if one.name.lower() in EVENT]
    inside = [Column(f.name, f"{whole[0].sql}.{sql.name(f.name)}", f.dataType) for f in hidden]
    return [one for one in columns if one is not whole[0]] + inside


def _guarded_meta(found: str) -> str:
    """Users may change meta, but not what the engine keeps there."""
    mine = f"map_filter(CAST({found} AS map<string,string>), (k, v) -> NOT startswith(k, '{OURS}') AND v IS NOT NULL)"
    kept = f"map_filter(meta, (k, v) -> startswith(k, '{OURS}'))"
    return f"coalesce(map_concat({mine}, {kept}), {kept})"
