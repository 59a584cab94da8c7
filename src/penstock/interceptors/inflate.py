"""Decompressors that take bytes as they come and give out a bounded amount at a time.

One `Inflater` unpacks one member (gzip's word; elsewhere a frame or a stream). An `Unpacker` runs
them one after the other over a run of bytes, since every format here lets members follow on.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Final, Protocol

import lz4.frame

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors.snappy import SnappyError, SnappyInflater
from penstock.limits import MAX_ZSTD_WINDOW_LOG, KiB, MiB

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

STEP_BYTES: Final = 1 * MiB  # unpacked at a time, between two looks at the limit

# Packed bytes handed over at a time. What is left when a member ends gets copied, so a run of tiny
# members is taken in small bites; a long member in ever larger ones.
FIRST_BITE_BYTES: Final = 1 * KiB
LAST_BITE_BYTES: Final = 64 * KiB

ERRORS: Final = (zlib.error, zstd.ZstdError, RuntimeError, SnappyError)
"""What inflaters raise on bytes they cannot take; `RuntimeError` is lz4's."""


class Inflater(Protocol):
    @property
    def eof(self) -> bool:
        """Whether the member has come to its end."""

    @property
    def unused_data(self) -> bytes | None:
        """What came after the end."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """At most `max_length` bytes; if exactly that many, more may come without more input."""


class _Zlib:
    """zlib gives back what it has not used, where the others keep it: this keeps it too."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        left = self._inner.unconsumed_tail
        return self._inner.decompress(left + data if left else data, max_length)


def _zstd() -> Inflater:
    # A frame says how much memory its reader needs; this refuses those that ask for too much.
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG}
    inflater: Inflater = zstd.ZstdDecompressor(options=options)
    return inflater


def _lz4() -> Inflater:
    inflater: Inflater = lz4.frame.LZ4FrameDecompressor()
    return inflater


INFLATERS: Final[dict[str, Callable[[], Inflater]]] = {
    "gzip": lambda: _Zlib(16 + zlib.MAX_WBITS),
    "zlib": lambda: _Zlib(zlib.MAX_WBITS),
    "zstd": _zstd,
    "lz4": _lz4,
    "snappy": SnappyInflater,
}


class Unpacker:
    """One run of members of one format, in whatever pieces it comes."""

    def __init__(self, name: str, kind: str, at: int = 0) -> None:
        self._name = name
        self._kind = kind
        self._inflater: Inflater | None = None
        self._at = at  # bytes taken so far, for error messages
        self._bite = FIRST_BITE_BYTES

    def unpack(self, data: bytes, max_inflated: int) -> tuple[bytes, InvalidMessage | None]:
        """What `data` unpacks to, up to the first byte that cannot be taken, and why it cannot."""
        found: list[bytes] = []
        room = max_inflated
        start = 0
        while start < len(data):
            bite = data[start : start + self._bite]
            try:
                room = self._take(bite, room, found)
            except InvalidMessage as error:
                return b"".join(found), error
            assert self._inflater is not None
            used = len(bite)
            if self._inflater.eof:
                used -= len(self._inflater.unused_data or b"")
                self._inflater = None
                self._bite = FIRST_BITE_BYTES
            else:
                self._bite = min(2 * self._bite, LAST_BITE_BYTES)
            start += used
            self._at += used
        return b"".join(found), None

    def _take(self, bite: bytes, room: int, found: list[bytes]) -> int:
        """Unpack one bite into `found`, which may grow by `room` bytes; the room that is left."""
        if self._inflater is None:
            self._inflater = INFLATERS[self._kind]()
        inflater = self._inflater
        while True:
            step = min(STEP_BYTES, room + 1)
            try:
                out = inflater.decompress(bite, step)
            except ERRORS as reason:
                raise InvalidMessage(
                    f"{self._name}: after byte {self._at}: not {self._kind}: {reason}"
                ) from None
            room -= len(out)
            if room < 0:
                raise TooLarge(
                    f"{self._name}: after byte {self._at}: unpacks to more than the limit "
                    "(max_inflated) allows; send less at a time"
                )
            found.append(out)
            if len(out) < step or inflater.eof:
                return room
            bite = b""

    def check_end(self) -> None:
        """Raise InvalidMessage if the bytes so far end inside a member."""
        inflater = self._inflater
        if inflater is None or (isinstance(inflater, SnappyInflater) and inflater.between_chunks):
            return
        raise InvalidMessage(
            f"{self._name}: byte {self._at}: the end came in the middle of {self._kind} data"
        )
