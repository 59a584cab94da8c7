"""`string`: payloads that are text."""

from __future__ import annotations

from penstock.codecs.options import StringOptions


class StringCodec:
    def __init__(self, options: StringOptions) -> None:
        self._encoding = options.encoding

    def why_invalid(self, payload: bytes) -> str | None:
        try:
            payload.decode(self._encoding)
        except UnicodeDecodeError as error:
            return f"byte {error.start}: not {self._encoding}: {error.reason}"
        return None
