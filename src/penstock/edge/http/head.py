"""The head of a request, from its bytes to what it says. No I/O, no state, no options.

httptools reads it, and refuses whatever could be read in two ways: bare line feeds, folded headers, two
lengths, a length beside a transfer coding. What it leaves to its caller is checked here.
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

from penstock.errors import PenstockError
from penstock.limits import MAX_HEADER_BYTES, MAX_HEADERS

HEAD_END = b"\r\n\r\n"
CHUNKED = -1
_SCHEMES = (b"http://", b"https://")


class Refused(PenstockError):
    """The request is answered with an error; `close` if the connection cannot go on after it."""

    def __init__(self, code: int, reason: str, *, close: bool = False, hint: bytes = b"") -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.close = close
        self.hint = hint  # a header line that says what would be right


TOO_LONG = f"a request's line and headers have at most {MAX_HEADER_BYTES} bytes"


@dataclass(frozen=True, slots=True)
class Head:
    method: bytes
    path: bytes
    query: bytes
    headers: list[tuple[bytes, bytes]]  # names in lower case
    length: int  # of the body; or CHUNKED
    keep: bool  # the connection goes on after the answer
    old: bool  # HTTP/1.0
    expects: bool  # waits for 100 Continue before it sends the body


class _Heard:
    """What the parser calls."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.complete = True


def check_beginning(data: bytes | bytearray) -> None:
    """The first byte of a head says whether this is HTTP at all: TLS and line noise are not."""
    if not b"A" <= data[:1] <= b"Z":
        raise Refused(400, "not HTTP/1.1: a request begins with its method", close=True)


def parse_head(data: bytes) -> Head:
    """`data` ends with the empty line that ends a head, and has no other. Every error closes."""
    check_beginning(data)
    if len(data) > MAX_HEADER_BYTES:
        raise Refused(431, TOO_LONG, close=True)
    heard = _Heard()
    parser = httptools.HttpRequestParser(heard)
    try:
        parser.feed_data(data)
    except httptools.HttpParserUpgrade:
        pass  # nothing is offered to upgrade to, and a client that asked has to live with that
    except httptools.HttpParserError as error:
        raise Refused(400, f"not HTTP/1.1: {error}", close=True) from None
    if not heard.complete:
        raise Refused(400, "not HTTP/1.1: the headers have no end", close=True)
    version = parser.get_http_version()
    if version not in ("1.0", "1.1"):
        raise Refused(505, "this is HTTP/1.1", close=True)
    if len(heard.headers) > MAX_HEADERS:
        raise Refused(431, f"more than {MAX_HEADERS} header fields", close=True)
    return _checked(parser.get_method(), heard, old=version == "1.0")


def _checked(method: bytes, heard: _Heard, *, old: bool) -> Head:
    names = [name for name, _ in heard.headers]
    found = dict(heard.headers)
    if not old and names.count(b"host") != 1:
        raise Refused(400, "HTTP/1.1 needs one Host header", close=True)
    expectation = found.get(b"expect", b"").strip().lower()
    if expectation not in (b"", b"100-continue"):
        raise Refused(417, "the only expectation met here is 100-continue", close=True)
    path, _, query = _origin(heard.target).partition(b"?")
    return Head(
        method=method,
        path=path,
        query=query.partition(b"#")[0],
        headers=heard.headers,
        length=_length(found, old=old),
        keep=_keep(heard.headers, old=old),
        old=old,
        expects=bool(expectation) and not old,
    )


def _origin(target: bytes) -> bytes:
    """The path and query, also of a target with the scheme and the host (as proxies send it)."""
    if target.lower().startswith(_SCHEMES):
        rest = target.partition(b"://")[2]
        cut = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
        return rest[cut:] if rest[cut : cut + 1] == b"/" else b"/" + rest[cut:]
    return target


def _length(found: dict[bytes, bytes], *, old: bool) -> int:
    coding = found.get(b"transfer-encoding")
    if coding is None:
        # The parser has seen to it that it is a number, and there once.
        return int(found.get(b"content-length", b"0"))
    if old:
        raise Refused(400, "HTTP/1.0 has no transfer codings", close=True)
    if coding.strip().lower() != b"chunked":
        raise Refused(501, "the only transfer coding read here is chunked", close=True)
    return CHUNKED


def _keep(headers: list[tuple[bytes, bytes]], *, old: bool) -> bool:
    options = {
        option.strip().lower()
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    }
    return b"close" not in options and (not old or b"keep-alive" in options)
