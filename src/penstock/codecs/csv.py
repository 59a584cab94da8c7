"""`csv`: one record a payload, as RFC 4180 has it; a quote inside quotes is doubled.

With `columns`, Spark reads it. Without, a value is an array of texts, which is read here.
"""

from __future__ import annotations

import csv
import io

import orjson
import pyarrow as pa

from penstock.codecs.options import CsvOptions


class _Wrong(Exception):
    """What is wrong with a payload."""


class CsvCodec:
    def __init__(self, options: CsvOptions) -> None:
        self._delimiter = options.delimiter
        self._quote = options.quote
        self._columns = options.columns

    def why_invalid(self, payload: bytes) -> str | None:
        try:
            fields = self._fields(payload)
        except _Wrong as error:
            return str(error)
        if not self._columns or len(fields) == len(self._columns):
            return None
        return f"{len(fields)} fields; expected {len(self._columns)}: {', '.join(self._columns)}"

    def to_json(self, payloads: pa.Array) -> pa.Array:
        return pa.array([self._text(one) for one in payloads.to_pylist()], pa.string())

    def from_json(self, texts: pa.Array) -> pa.Array:
        return pa.array([self._payload(one) for one in texts.to_pylist()], pa.binary())

    def _text(self, payload: bytes | None) -> str | None:
        if payload is None:
            return None
        try:
            return orjson.dumps(self._fields(payload)).decode()
        except _Wrong:
            return None

    def _fields(self, payload: bytes) -> list[str]:
        try:
            text = payload.decode()
        except UnicodeDecodeError as error:
            raise _Wrong(f"byte {error.start}: not UTF-8") from None
        reader = csv.reader(
            io.StringIO(text, newline=""),
            delimiter=self._delimiter,
            quotechar=self._quote,
            strict=True,
        )
        try:
            records = list(reader)
        except csv.Error as error:
            raise _Wrong(f"line {reader.line_num}: not CSV: {error}") from None
        if len(records) != 1:
            raise _Wrong(f"{len(records)} records; expected one")
        return records[0]

    def _payload(self, text: str | None) -> bytes | None:
        value = None if text is None else orjson.loads(text)
        if isinstance(value, dict):
            names = self._columns or list(value)
            value = [value.get(name) for name in names]
        if not isinstance(value, list):
            return None
        out = io.StringIO()
        writer = csv.writer(
            out, delimiter=self._delimiter, quotechar=self._quote, lineterminator=""
        )
        writer.writerow([_field(one) for one in value])
        return out.getvalue().encode()


def _field(value: object) -> str:
    """A value as text; what is no text or number stands as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()
