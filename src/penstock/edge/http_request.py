"""What an HTTP request asks for, decided from its line and headers alone. No I/O."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qsl

from penstock.errors import InvalidMessage, PenstockError
from penstock.limits import MAX_STREAM_NAME_BYTES
from penstock.message import KEY_STREAM, check_sender_stream, encode_meta
from penstock.peers.http import HttpServerOptions

STREAM_HEADER = b"penstock-stream"
SEQUENCE_HEADER = b"penstock-sequence"
_LINES = {b"application/x-ndjson", b"application/ndjson", b"application/jsonl"}
_RESERVED_QUERY = {"sync"}


class Refused(PenstockError):
    """The request is answered with an error; `close` if the connection cannot go on after it."""

    def __init__(self, code: int, reason: str, *, close: bool = False) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.close = close


@dataclass(slots=True)
class Request:
    """A POST that may be taken. `framing` is one, lines, or length_prefixed."""

    framing: str
    meta: dict[str, str]
    encoded_meta: bytes
    stream: str | None  # chosen by the sender; None: the connection's own
    seq: int


class Gate:
    """The rules of one receiver."""

    def __init__(self, options: HttpServerOptions) -> None:
        self._options = options
        self._path = options.path.rstrip("/").encode()
        self._tokens = [
            hashlib.sha256(token.get_secret_value().encode()).digest() for token in options.tokens
        ]
        self._names = {n.encode() for n in options.meta_headers if not n.endswith("*")}
        self._prefixes = tuple(n[:-1].encode() for n in options.meta_headers if n.endswith("*"))

    def admit(self, method: bytes, target: bytes, headers: list[tuple[bytes, bytes]]) -> Request:
        path, _, query = target.partition(b"?")
        if path != self._path and not path.startswith(self._path + b"/"):
            raise Refused(404, f"messages are posted to {self._options.path} or below it")
        if method != b"POST":
            raise Refused(405, "messages are sent with POST")
        found = dict(headers)
        self._authorise(found.get(b"authorization", b""))
        encoding = found.get(b"content-encoding", b"identity").strip().lower()
        if encoding != b"identity":
            raise Refused(
                415, f"content-encoding {encoding.decode('latin-1')!r}: use the gzip interceptor"
            )
        meta = self._meta(query, headers)
        stream, seq = _sender_stream(found)
        try:
            encoded = encode_meta(meta)
        except InvalidMessage as error:
            raise Refused(400, str(error)) from None
        framing = self._framing(found.get(b"content-type", b""))
        if stream is not None and stream.startswith(KEY_STREAM) and framing != "one":
            raise Refused(
                400, "Idempotency-Key names one message; number many with Penstock-Stream"
            )
        return Request(framing, meta, encoded, stream, seq)

    def _authorise(self, value: bytes) -> None:
        if not self._tokens:
            return
        scheme, _, token = value.partition(b" ")
        shown = hashlib.sha256(token.strip()).digest()
        known = [hmac.compare_digest(shown, token) for token in self._tokens]
        if scheme.lower() != b"bearer" or not any(known):
            raise Refused(401, "a bearer token is needed")

    def _framing(self, content_type: bytes) -> str:
        if self._options.mode != "auto":
            return self._options.mode
        kind = content_type.partition(b";")[0].strip().lower()
        return "lines" if kind in _LINES else "one"

    def _meta(self, query: bytes, headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
        meta: dict[str, str] = {}
        if query:
            try:
                pairs = parse_qsl(
                    query.decode("latin-1"),
                    keep_blank_values=True,
                    encoding="utf-8",
                    errors="replace",
                    max_num_fields=128,
                )
            except ValueError:
                raise Refused(400, "more than 128 query parameters") from None
            meta.update((k, v) for k, v in pairs if k not in _RESERVED_QUERY)
        if self._names or self._prefixes:
            for name, value in headers:
                if name in self._names or (self._prefixes and name.startswith(self._prefixes)):
                    meta[name.decode("latin-1")] = value.decode("latin-1")
        return meta


def _sender_stream(headers: dict[bytes, bytes]) -> tuple[str | None, int]:
    key = headers.get(b"idempotency-key")
    name = headers.get(STREAM_HEADER)
    if key is not None and name is not None:
        raise Refused(400, "send Idempotency-Key or Penstock-Stream, not both")
    if key is not None:
        text = key.decode("latin-1").strip()
        if not text or len(text) > MAX_STREAM_NAME_BYTES:
            raise Refused(400, f"Idempotency-Key has 1 to {MAX_STREAM_NAME_BYTES} characters")
        return KEY_STREAM + text, 0
    if name is None:
        return None, 0
    digits = headers.get(SEQUENCE_HEADER, b"")
    if not digits.isdigit() or len(digits) > 18:
        raise Refused(
            400, "Penstock-Stream needs Penstock-Sequence: the number of its first message"
        )
    try:
        return check_sender_stream(name.decode("latin-1")), int(digits)
    except InvalidMessage as error:
        raise Refused(400, str(error)) from None
