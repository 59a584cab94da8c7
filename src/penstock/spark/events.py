"""Rows of any DataFrame as events for a topic: which columns count, and what stands in for the others."""

from __future__ import annotations

import time
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.config.spelling import nearest
from penstock.errors import ConfigError, InvalidMessage, TooLarge
from penstock.limits import (
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_META_BYTES,
    MAX_STREAM_NAME_BYTES,
)
from penstock.sinks.interface import EVENTS

_TEXT = (StringType, BinaryType)
_TAKEN: dict[str, tuple[type[DataType], ...]] = {
    "payload": _TEXT,
    "key": _TEXT,
    "meta": (MapType,),
    "time": (TimestampType,),
    "peer": (StringType,),
    "stream": (StringType,),
    "seq": (LongType, IntegerType),
}
_IGNORED = ("topic", "partition", "offset")
"""Where a row was read from. It gets a place of its own in the topic that is written."""


def check_columns(schema: StructType) -> None:
    """ConfigError if a DataFrame with these columns cannot be written to a topic."""
    names = schema.fieldNames()
    if "payload" not in names:
        raise ConfigError(
            "a topic needs the column payload (binary or string), such as to_json(struct(*)) AS payload; "
            f"there are {', '.join(names) or 'none'}"
        )
    for field in schema.fields:
        if field.name in _IGNORED:
            continue
        kinds = _TAKEN.get(field.name)
        if kinds is None:
            close = nearest(field.name, list(_TAKEN))
            hint = f"did you mean {close}?" if close else f"it takes {', '.join(_TAKEN)}"
            raise ConfigError(f"a topic has no column {field.name[:40]!r}; {hint}")
        if not isinstance(field.dataType, kinds) or not _is_text_map(field.dataType):
            wanted = "map<string,string>" if field.name == "meta" else _named(kinds)
            raise ConfigError(
                f"column {field.name}: expected {wanted}, not {_shown(field.dataType)}"
            )
    if ("stream" in names) != ("seq" in names):
        raise ConfigError(
            "columns stream and seq: give both or none; together they are a message's number in its stream"
        )


def _is_text_map(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def _named(kinds: tuple[type[DataType], ...]) -> str:
    return " or ".join(_shown(kind()) for kind in kinds)


def _shown(kind: DataType) -> str:
    return kind.simpleString()


class ToEvents:
    """Turns the batches of one task into events. Rows without a stream get one of the task's own."""

    def __init__(self, peer: str, stream: str) -> None:
        self._peer = peer
        self._stream = stream
        self._seq = 0

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        given = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns: list[Any] = []
        for field in EVENTS:
            column = given.get(field.name)
            if field.name in _IGNORED:
                columns.append(pa.nulls(count, field.type))
            elif column is not None:
                columns.append(_checked(field, column))
            else:
                columns.append(self._default(field, count))
        self._seq += count
        events = pa.RecordBatch.from_arrays(columns, schema=EVENTS)
        _check(events)
        return events

    def _default(self, field: pa.Field, count: int) -> Any:
        if field.name == "time":
            return pa.repeat(_now(), count)
        if field.name == "peer":
            return pa.repeat(self._peer, count)
        if field.name == "stream":
            return pa.repeat(self._stream, count)
        if field.name == "seq":
            return pa.array(np.arange(self._seq, self._seq + count))
        if field.name == "meta":
            nothing = pa.array([], pa.string())
            return pa.MapArray.from_arrays(np.zeros(count + 1, np.int32), nothing, nothing)
        return pa.nulls(count, field.type)  # the key


def _check(events: pa.RecordBatch) -> None:
    """Now, while the write can still fail: once it is decided, the topic must take it."""
    for name in ("peer", "stream", "meta"):
        try:
            events.column(name).validate(full=True)
        except pa.ArrowInvalid:  # Spark casts any bytes to a string
            raise InvalidMessage(f"column {name}: not every text in it is UTF-8") from None
    for name, limit in _MAX_BYTES.items():
        lengths = pc.binary_length(events.column(name))
        largest = pc.max(lengths).as_py()
        if largest is not None and largest > limit:
            raise TooLarge(f"column {name}: {largest} bytes are over the limit of {limit}")
    meta = cast("pa.MapArray", events.column("meta"))
    sizes = pc.add(pc.binary_length(meta.keys), pc.binary_length(meta.items))
    ends = np.concatenate(([0], np.cumsum(sizes.to_numpy(zero_copy_only=False))))
    largest = int(np.diff(ends[meta.offsets.to_numpy()]).max(initial=0))
    if largest > MAX_META_BYTES:
        raise TooLarge(f"column meta: {largest} bytes are over the limit of {MAX_META_BYTES}")


_MAX_BYTES = {
    "payload": MAX_MESSAGE_BYTES,
    "key": MAX_KEY_BYTES,
    "peer": MAX_STREAM_NAME_BYTES,
    "stream": MAX_STREAM_NAME_BYTES,
}


def _checked(field: pa.Field, column: Any) -> Any:
    if field.name == "meta":
        return _meta(column)
    if column.type != field.type:
        column = column.cast(field.type)
    if not column.null_count or field.name == "key":
        return column
    if field.name == "time":
        return column.fill_null(_now())
    raise InvalidMessage(
        f"column {field.name} is null in {column.null_count} of {len(column)} rows; "
        "leave them out with a filter, or give them a value with coalesce"
    )


def _meta(column: Any) -> Any:
    """Without entries that have no value: an attribute is there or it is not."""
    wanted = EVENTS.field("meta").type
    meta = cast("pa.MapArray", column)
    ends = meta.offsets.to_numpy()
    first, entries = int(ends[0]), int(ends[-1] - ends[0])
    keys, items = meta.keys.slice(first, entries), meta.items.slice(first, entries)
    if not items.null_count and not meta.null_count:
        return meta if meta.type == wanted else meta.cast(wanted)
    # A row that is null has no entries in Arrow, wherever its offsets may point.
    lengths = np.diff(ends) * pc.is_valid(meta).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(meta)), np.diff(ends))
    alive = pc.is_valid(items).to_numpy(zero_copy_only=False) & (lengths[rows] > 0)
    bounds = np.concatenate(([0], np.cumsum(np.bincount(rows[alive], minlength=len(meta)))))
    mask = pa.array(alive)
    kept = (keys.filter(mask), items.filter(mask))
    return pa.MapArray.from_arrays(pa.array(bounds.astype(np.int32)), *kept).cast(wanted)


def _now() -> pa.Scalar:
    return pa.scalar(time.time_ns() // 1000, pa.timestamp("us", "UTC"))
