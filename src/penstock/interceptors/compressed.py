"""`gzip` and `decompress`.

Before a framing interceptor, the bytes of the stream are one compressed run: state is kept from
chunk to chunk, and members may follow one another. After one, each payload is compressed by itself.

`max_inflated` is for one payload, or for what one chunk of a stream unpacks to. A stream as such
may go on for ever, so it has no limit in total.
"""

from __future__ import annotations

import zlib
from typing import Final

from penstock.errors import InvalidMessage
from penstock.interceptors.inflate import Unpacker
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.snappy import MAGIC as SNAPPY_MAGIC
from penstock.interceptors.stage import Stage, run
from penstock.message import Buffer

MAGIC: Final[dict[bytes, str]] = {
    b"\x1f\x8b": "gzip",
    # zlib's four levels; its 32 KiB window is what everybody uses.
    b"\x78\x01": "zlib",
    b"\x78\x5e": "zlib",
    b"\x78\x9c": "zlib",
    b"\x78\xda": "zlib",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    SNAPPY_MAGIC: "snappy",
}
MAX_MAGIC_BYTES: Final = max(map(len, MAGIC))
LEVEL: Final = 6  # what `decompress` packs with, in the rare case that it has to


def detect(start: bytes) -> str | None:
    """The format of data that begins like this, or None."""
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    return None


def may_become_magic(start: bytes) -> bool:
    """Whether more bytes could turn this into the beginning of a known format."""
    return any(len(start) < len(magic) and magic.startswith(start) for magic in MAGIC)


class _Packer:
    """The way out: one gzip member, each chunk of which the other side can read at once."""

    def __init__(self, level: int) -> None:
        self._level = level
        self._inner: zlib._Compress | None = None

    def pack(self, data: Buffer) -> bytes:
        if self._inner is None:
            self._inner = zlib.compressobj(self._level, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
        return self._inner.compress(data) + self._inner.flush(zlib.Z_SYNC_FLUSH)

    def finish(self) -> bytes:
        inner, self._inner = self._inner, None
        return b"" if inner is None else inner.flush(zlib.Z_FINISH)


def _packed(data: Buffer, level: int) -> bytes:
    return zlib.compress(data, level, 16 + zlib.MAX_WBITS)


class Gzip(Stage):
    """gzip, and nothing else: what does not begin like gzip is invalid."""

    def __init__(self, *, max_inflated: int, level: int) -> None:
        self._max_inflated = max_inflated
        self._level = level
        self._unpacker = Unpacker("gzip", "gzip")
        self._packer = _Packer(level)

    def feed(self, chunk: Payloads) -> Payloads:
        unpacked, error = self._unpacker.unpack(bytes(chunk.blob), self._max_inflated)
        return self.give(run(unpacked), error)

    def flush(self) -> Payloads:
        self._unpacker.check_end()
        return NOTHING

    def wrap(self, payloads: Payloads) -> Payloads:
        return run(self._packer.pack(payloads.blob)) if len(payloads.blob) else NOTHING

    def finish(self) -> bytes:
        return self._packer.finish()

    def whole(self, payload: Buffer) -> Payloads:
        return Payloads(unpack_whole("gzip", "gzip", bytes(payload), self._max_inflated))

    def wrap_whole(self, payload: Buffer) -> bytes:
        return _packed(payload, self._level)


class Decompress(Stage):
    """Looks at the first bytes: gzip, zlib, zstd, lz4 (frames) and snappy (framed) are unpacked,
    anything else passes as it is.

    The way out passes everything as it is too, unless it would be taken for compressed data on the
    other side: that is packed with gzip, so that it arrives as it was.
    """

    def __init__(self, *, max_inflated: int) -> None:
        self._max_inflated = max_inflated
        self._start: bytes | None = b""  # the first bytes, while they do not tell the format
        self._unpacker: Unpacker | None = None
        self._packer: _Packer | None = None
        self._plain_out = False

    @property
    def held_bytes(self) -> int:
        return len(self._start or b"")

    def feed(self, chunk: Payloads) -> Payloads:
        data = bytes(chunk.blob)
        if self._start is not None:
            data = self._start + data
            if may_become_magic(data):
                self._start = data
                return NOTHING
            self._start = None
            kind = detect(data)
            if kind is not None:
                self._unpacker = Unpacker("decompress", kind)
        if self._unpacker is None:
            return run(data)
        unpacked, error = self._unpacker.unpack(data, self._max_inflated)
        return self.give(run(unpacked), error)

    def flush(self) -> Payloads:
        if self._unpacker is not None:
            self._unpacker.check_end()
        rest, self._start = self._start or b"", None
        return run(rest)

    def wrap(self, payloads: Payloads) -> Payloads:
        data = bytes(payloads.blob)
        if not data:
            return NOTHING
        if self._packer is None and not self._plain_out:
            if detect(data) or may_become_magic(data):
                self._packer = _Packer(LEVEL)
            else:
                self._plain_out = True
        return run(self._packer.pack(data) if self._packer is not None else data)

    def finish(self) -> bytes:
        return b"" if self._packer is None else self._packer.finish()

    def whole(self, payload: Buffer) -> Payloads:
        data = bytes(payload)
        kind = detect(data)
        if kind is None:
            return Payloads(data)
        return Payloads(unpack_whole("decompress", kind, data, self._max_inflated))

    def wrap_whole(self, payload: Buffer) -> bytes:
        data = bytes(payload)
        return data if detect(data) is None else _packed(data, LEVEL)


def unpack_whole(name: str, kind: str, data: bytes, max_inflated: int) -> bytes:
    """A payload that is compressed by itself. An empty one is not: InvalidMessage."""
    if not data:
        raise InvalidMessage(f"{name}: byte 0: expected {kind} data, found an empty payload")
    unpacker = Unpacker(name, kind)
    unpacked, error = unpacker.unpack(data, max_inflated)
    if error is not None:
        raise error
    unpacker.check_end()
    return unpacked
