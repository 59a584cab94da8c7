"""Events as lines, whole columns at a time. Each function gives one value an event, its end included.

`json_lines` makes the objects of `penstock tail --json`:

    topic, partition, offset, time, id: {peer, stream, seq}, key, meta, payload

where `payload` and `key` are text if they are UTF-8, and else base64, which `encoding` (or
`key_encoding`) then says. Nothing here handles a single event but base64, which text does not need.
"""

from __future__ import annotations

import base64
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.columns import Column, bytes_of, offsets_of

Mask = npt.NDArray[np.bool_]

_NEWLINE: Final = 10
_TIME_CHARS: Final = 26  # of 2024-01-31 12:00:00.000000
_SHORT_ESCAPES: Final = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}


def plain_lines(payload: Column) -> Column:
    """Payloads as they are, with a line feed after each that does not end with one."""
    payload = pc.fill_null(payload, b"")
    ended = pc.ends_with(payload, pattern=b"\n")
    if not pc.any(ended).as_py():
        return _join(payload, b"\n")
    return _join(payload, pc.if_else(ended, _scalar(b""), _scalar(b"\n")))


def json_lines(events: pa.RecordBatch) -> Column:
    column = events.column
    key, key_raw = _text(column("key"))
    payload, payload_raw = _text(column("payload"))
    tail: list[Column | bytes] = [b"}\n"]
    if key_raw is not None:
        tail.insert(0, _where(key_raw, b',"key_encoding":"base64"'))
    if payload_raw is not None:
        tail.insert(0, _where(payload_raw, b',"encoding":"base64"'))
    return _join(
        b'{"topic":',
        _name(column("topic")),
        b',"partition":',
        _number(column("partition")),
        b',"offset":',
        _number(column("offset")),
        b',"time":"',
        _time(column("time")),
        b'Z","id":{"peer":',
        _name(column("peer")),
        b',"stream":',
        _name(column("stream")),
        b',"seq":',
        _number(column("seq")),
        b'},"key":',
        key,
        b',"meta":',
        _meta(column("meta")),
        b',"payload":',
        payload,
        *tail,
    )


def _scalar(value: bytes) -> Any:
    return pa.scalar(value, pa.binary())


def _join(*parts: Column | bytes) -> Column:
    values = [_scalar(part) if isinstance(part, bytes) else part for part in parts]
    return pc.binary_join_element_wise(*values, _scalar(b""))


def _where(mask: Mask, text: bytes) -> Column:
    return pc.if_else(pa.array(mask), _scalar(text), _scalar(b""))


def _number(column: Column) -> Column:
    return pc.fill_null(column.cast(pa.string()).cast(pa.binary()), b"null")


def _time(column: Column) -> Column:
    """ISO 8601 without the zone, which is UTC."""
    texts = column.cast(pa.timestamp("us")).cast(pa.string()).cast(pa.binary())
    if column.null_count or (np.diff(offsets_of(texts)) != _TIME_CHARS).any():
        # Years of five digits, and before the first: rare enough to be slow.
        return pc.replace_substring(pc.fill_null(texts, b"null"), b" ", b"T")
    chars = np.frombuffer(bytes_of(texts), np.uint8).copy()
    chars.reshape(-1, _TIME_CHARS)[:, 10] = ord("T")
    offsets = np.arange(0, len(chars) + 1, _TIME_CHARS, dtype=np.int32)
    return _binary(offsets, chars)


def _binary(offsets: npt.NDArray[np.int32], data: Any) -> Column:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _name(column: Column) -> Column:
    """A JSON string of each: few different ones, many times."""
    encoded = pc.dictionary_encode(column)
    return pc.fill_null(
        _quoted(encoded.dictionary.cast(pa.binary())).take(encoded.indices), b"null"
    )


def _quoted(column: Column) -> Column:
    return _join(b'"', _escaped(column), b'"')


def _escaped(column: Column) -> Column:
    """What must not stand in a JSON string as it is: quotes, backslashes, control characters."""
    data = np.frombuffer(bytes_of(column), np.uint8)
    if (data == ord("\\")).any():
        column = pc.replace_substring(column, b"\\", b"\\\\")
    if (data == ord('"')).any():
        column = pc.replace_substring(column, b'"', b'\\"')
    control = data < 32
    if control.any():
        for byte in np.flatnonzero(np.bincount(data[control])).tolist():
            escape = _SHORT_ESCAPES.get(byte, b"\\u%04x" % byte)
            column = pc.replace_substring(column, bytes((byte,)), escape)
    return column


def _text(column: Column) -> tuple[Column, Mask | None]:
    """JSON strings, and which of them are base64 (None if none is)."""
    if column.null_count == len(column):
        return pa.array([b"null"], pa.binary()).take(pa.array(np.zeros(len(column), np.int8))), None
    raw = None
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
        raw = np.fromiter((not _is_text(value) for value in values), np.bool_, len(values))
        found = [
            base64.b64encode(value) if is_raw else value
            for value, is_raw in zip(values, raw.tolist(), strict=True)
        ]
        column = pa.array(found, pa.binary())
    return pc.fill_null(_quoted(column), b"null"), raw


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _meta(column: Column) -> Column:
    meta = cast("pa.MapArray", column)
    ends = meta.offsets.to_numpy()
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    if not count:
        return pa.array([b"{}"], pa.binary()).take(pa.array(np.zeros(len(column), np.int8)))
    names = _quoted(meta.keys.slice(first, count).cast(pa.binary()))
    texts = pc.fill_null(_quoted(meta.items.slice(first, count).cast(pa.binary())), b"null")
    entries = pa.ListArray.from_arrays(pa.array(ends - first), _join(names, b":", texts))
    return _join(b"{", pc.binary_join(entries, _scalar(b",")), b"}")
