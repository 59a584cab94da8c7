"""`json`: one value a payload, as RFC 8259 has it: UTF-8, nothing after the value, no name twice."""

from __future__ import annotations

import json
from typing import Any

import orjson

from penstock.codecs.options import JsonOptions


class _Repeated(Exception):
    """A name stands twice in one object."""


class JsonCodec:
    def __init__(self, options: JsonOptions) -> None:
        self._ddl = options.schema_ddl

    def why_invalid(self, payload: bytes) -> str | None:
        try:
            value = orjson.loads(payload)
        except orjson.JSONDecodeError as error:
            at = len(error.doc[: error.pos].encode())
            return f"byte {at}: not JSON: {error.msg.partition(': line')[0]}"
        try:
            json.loads(payload, object_pairs_hook=_refuse_repeats)
        except _Repeated as error:
            return f"not JSON: the name {str(error)!r} stands twice in one object"
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if self._ddl is None:
            return None
        if not isinstance(value, dict):
            return f"byte 0: expected an object with the columns {self._ddl}"
        return f"a value does not fit the columns {self._ddl}"


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Repeated(next(name for name in names if names.count(name) > 1))
    return found
