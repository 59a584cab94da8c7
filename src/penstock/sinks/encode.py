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

from penstock.interceptors.weaving import binary
from penstock.sinks.columns import Column, bytes_of, offsets_of

Mask = npt.NDArray[np.bool_]

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
    tail: list[Column | bytes] = []
    if payload_raw is not None:
        tail.append(_where(payload_raw, b',"encoding":"base64"'))
    if key_raw is not None:
        tail.append(_where(key_raw, b',"key_encoding":"base64"'))
    return _join(
        _name(column("topic"), b'{"topic":', b',"partition":'),
        _name(column("partition"), b"", b',"offset":'),
        _number(column("offset")),
        _time(column("time"), b',"time":"'),
        _name(column("peer"), b'Z","id":{"peer":', b',"stream":'),
        _name(column("stream"), b"", b',"seq":'),
        _number(column("seq")),
        b'},"key":',
        *key,
        b',"meta":',
        *_meta(column("meta")),
        b',"payload":',
        *payload,
        *tail,
        b"}\n",
    )


def _scalar(value: bytes) -> Any:
    return pa.scalar(value, pa.binary())


def _join(*parts: Column | bytes) -> Column:
    """Columns and, between them, what is the same in every row. Few parts are faster than many."""
    values: list[Any] = []
    constant = b""
    for part in parts:
        if isinstance(part, bytes):
            constant += part
            continue
        if constant:
            values.append(_scalar(constant))
            constant = b""
        values.append(part)
    if constant:
        values.append(_scalar(constant))
    return pc.binary_join_element_wise(*values, _scalar(b""))


def _where(mask: Mask, text: bytes) -> Column:
    return pc.if_else(pa.array(mask), _scalar(text), _scalar(b""))


def _number(column: Column) -> Column:
    return pc.fill_null(column.cast(pa.string()).cast(pa.binary()), b"null")


def _time(column: Column, before: bytes) -> Column:
    """ISO 8601 without the zone, which is UTC."""
    texts = column.cast(pa.timestamp("us")).cast(pa.string()).cast(pa.binary())
    if column.null_count or (np.diff(offsets_of(texts)) != _TIME_CHARS).any():
        # Years of five digits, and before the first: rare enough to be slow.
        return _join(before, pc.replace_substring(pc.fill_null(texts, b"null"), b" ", b"T"))
    width = len(before) + _TIME_CHARS
    chars = np.empty((len(texts), width), np.uint8)
    chars[:, : len(before)] = np.frombuffer(before, np.uint8)
    chars[:, len(before) :] = np.frombuffer(bytes_of(texts), np.uint8).reshape(-1, _TIME_CHARS)
    chars[:, len(before) + 10] = ord("T")
    return binary(np.arange(0, chars.size + 1, width, dtype=np.int32), chars)


def _name(column: Column, before: bytes, after: bytes) -> Column | bytes:
    """A JSON value of each, with what stands around it: few different ones, many times; often just one."""
    if _is_one(column):
        column = column.slice(0, 1)
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    names = encoded.dictionary
    if pa.types.is_string(names.type):
        texts = pc.fill_null(_join(b'"', _escaped(names.cast(pa.binary())), b'"'), b"null")
    else:
        texts = _number(names)
    if len(texts) == 1:
        return before + bytes(texts[0].as_py()) + after
    return _join(before, texts, after).take(encoded.indices)


def _is_one(column: Column) -> bool:
    """Whether it is plain to see that all rows are the same text."""
    if len(column) < 2 or column.null_count or not pa.types.is_string(column.type):
        return False
    offsets = offsets_of(column)
    size = int(offsets[1] - offsets[0])
    if int(offsets[-1] - offsets[0]) != size * len(column) or (np.diff(offsets) != size).any():
        return False
    data = bytes(bytes_of(column))
    return data[:size] * len(column) == data


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


def _text(column: Column) -> tuple[list[Column | bytes], Mask | None]:
    """The parts of a JSON string, and for which rows it is base64 (None if for none)."""
    if column.null_count == len(column):
        return [b"null"], None
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
    if column.null_count:
        return [pc.fill_null(_join(b'"', _escaped(column), b'"'), b"null")], raw
    return [b'"', _escaped(column), b'"'], raw


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or value.decode() is not None
    except UnicodeDecodeError:
        return False


def _meta(column: Column) -> list[Column | bytes]:
    meta = cast("pa.MapArray", column)
    ends = meta.offsets.to_numpy()
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    if not count:
        return [b"{}"]
    names = _name(meta.keys.slice(first, count), b"", b":")
    texts = _name(meta.items.slice(first, count), b"", b"")
    if isinstance(names, bytes) and isinstance(texts, bytes):
        names = pa.repeat(_scalar(names), count)
    if (np.diff(ends) == 1).all():  # one attribute each: nothing to put between them
        return [b"{", _join(names, texts), b"}"]
    entries = pa.ListArray.from_arrays(pa.array(ends - first), _join(names, texts))
    return [b"{", pc.binary_join(entries, _scalar(b",")), b"}"]
