"""A chunked body, as it comes: bytes in, bytes of the body out. No I/O.

    size in hexadecimal [; extensions] CRLF  data CRLF  ...  0 CRLF  [trailers] CRLF

Extensions and trailers are read and dropped. As strict as the grammar: what two readers could understand
in two ways is refused, since a proxy in front may be the other one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from penstock.edge.http.head import Refused
from penstock.limits import MAX_CHUNK_LINE_BYTES, MAX_HEADER_BYTES

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = rb'"(?:[\t\x20\x21\x23-\x5b\x5d-\x7e]|\\[\t\x20-\x7e])*"'
_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;%b(?:=(?:%b|%b))?)*" % (_TOKEN, _TOKEN, _QUOTED))
_TRAILER = re.compile(rb"%b:[\t\x20-\x7e\x80-\xff]*" % _TOKEN)


class _Next(Enum):
    SIZE = 1
    DATA = 2
    DATA_END = 3
    TRAILER = 4
    NOTHING = 5


class ChunkedBody:
    """One body. `feed` until `complete`."""

    def __init__(self) -> None:
        self._next = _Next.SIZE
        self._line = bytearray()
        self._left = 0  # of the chunk's data
        self._trailer_bytes = 0

    @property
    def complete(self) -> bool:
        return self._next is _Next.NOTHING

    def feed(self, data: bytes, at: int, keep: Callable[[bytes], None]) -> int:
        """Read from `at` on, to the end of the data or of the body; says where it stopped."""
        while at < len(data) and self._next is not _Next.NOTHING:
            if self._next is _Next.DATA:
                piece = data[at : at + self._left]
                keep(piece)
                at += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._next = _Next.DATA_END
                continue
            at, line = self._read_line(data, at)
            if line is not None:
                self._take_line(line)
        return at

    def _read_line(self, data: bytes, at: int) -> tuple[int, bytes | None]:
        """Up to and with the line feed; None as the line if that has not come yet."""
        end = data.find(b"\n", at) + 1
        self._line += data[at : end or len(data)]
        if len(self._line) > self._longest():
            raise _refused("a line of it is too long")
        if not end:
            return len(data), None
        line = bytes(self._line)
        self._line.clear()
        if line[-2:] != b"\r\n" or b"\r" in line[:-2]:
            raise _refused("a line of it does not end with CR LF")
        return end, line[:-2]

    def _longest(self) -> int:
        if self._next is _Next.DATA_END:
            return 2
        if self._next is _Next.TRAILER:
            return MAX_HEADER_BYTES - self._trailer_bytes
        return MAX_CHUNK_LINE_BYTES

    def _take_line(self, line: bytes) -> None:
        if self._next is _Next.SIZE:
            size = _SIZE.fullmatch(line)
            if size is None:
                raise _refused("the size of a chunk is not a hexadecimal number")
            self._left = int(size[1], 16)
            self._next = _Next.DATA if self._left else _Next.TRAILER
        elif self._next is _Next.DATA_END:
            if line:
                raise _refused("a chunk is longer than its size")
            self._next = _Next.SIZE
        elif line:
            if not _TRAILER.fullmatch(line):
                raise _refused("a trailer is not NAME: VALUE")
            self._trailer_bytes += len(line) + 2
        else:
            self._next = _Next.NOTHING


def _refused(reason: str) -> Refused:
    return Refused(400, f"not a chunked body: {reason}", close=True)
