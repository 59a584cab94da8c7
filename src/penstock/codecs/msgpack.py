"""`msgpack`: one value a payload. What JSON lacks becomes text: bytes base64, times ISO 8601."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any

import msgpack
import orjson
import pyarrow as pa

from penstock.codecs.options import MsgpackOptions


class MsgpackCodec:
    def __init__(self, options: MsgpackOptions) -> None:
        self._ddl = options.schema_ddl

    def why_invalid(self, payload: bytes) -> str | None:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, timestamp=3)
        unpacker.feed(payload)
        try:
            unpacker.unpack()
        except msgpack.OutOfData:
            return f"byte {len(payload)}: not MessagePack: the payload ends inside a value"
        except (ValueError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            return f"byte {unpacker.tell()}: not MessagePack: {reason}"
        if unpacker.tell() < len(payload):
            return f"byte {unpacker.tell()}: not MessagePack: more bytes after the value"
        if _to_json(payload) is None:
            return "a value that JSON cannot hold"
        return None if self._ddl is None else f"a value does not fit the columns {self._ddl}"

    def to_json(self, payloads: pa.Array) -> pa.Array:
        return pa.array([_to_json(one) for one in payloads.to_pylist()], pa.string())

    def from_json(self, texts: pa.Array) -> pa.Array:
        return pa.array([_from_json(one) for one in texts.to_pylist()], pa.binary())


def _to_json(payload: bytes | None) -> str | None:
    if payload is None:
        return None
    try:
        value = msgpack.unpackb(payload, raw=False, strict_map_key=False, timestamp=3)
        return orjson.dumps(value, default=_text, option=orjson.OPT_NON_STR_KEYS).decode()
    except (ValueError, TypeError, RecursionError):
        return None


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, msgpack.ExtType):
        return base64.b64encode(value.data).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(type(value).__name__)


def _from_json(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        packed: bytes = msgpack.packb(orjson.loads(text))
    except (ValueError, OverflowError):
        return None
    return packed
