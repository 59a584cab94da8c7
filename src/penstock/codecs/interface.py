"""What a codec does.

Codecs that Spark knows by itself (json, string, csv with columns) are compiled to Spark's own expressions, and
are asked here only why a payload is wrong. The others are bridges: they turn Arrow arrays of payloads into
JSON text, which Spark parses, and back.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import pyarrow as pa


class Codec(Protocol):
    def why_invalid(self, payload: bytes) -> str | None:
        """What is wrong with a payload, and at which byte if that can be told; None: nothing is."""


@runtime_checkable
class Bridge(Codec, Protocol):
    def to_json(self, payloads: pa.Array) -> pa.Array:
        """Payloads (binary) to JSON text: null where a payload is null or does not decode."""

    def from_json(self, texts: pa.Array) -> pa.Array:
        """JSON text to payloads: null where it is null, or holds what the format cannot."""
