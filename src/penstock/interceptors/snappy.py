"""The Snappy framing format: a stream of chunks, each packed by itself and with a checksum.

Arrow brings Snappy's block format; the chunks around the blocks are read here. A chunk is a type
byte, a 24-bit little-endian size and that many bytes:

    ff  stream identifier, the bytes `sNaPpY`; first of all, and allowed again later
    00  packed data:   masked CRC-32C of the unpacked data (4 bytes), a Snappy block
    01  unpacked data: masked CRC-32C (4 bytes), the data
    80 to fe           to be skipped
    02 to 7f           of a later version: cannot be read

A data chunk holds at most 64 KiB unpacked, so nothing here needs more memory than two of them.
"""

from __future__ import annotations

from typing import Final

import google_crc32c
import pyarrow as pa

from penstock.limits import KiB

MAGIC: Final = b"\xff\x06\x00\x00sNaPpY"

MAX_CHUNK_BYTES: Final = 64 * KiB
# Snappy's own bound for what 64 KiB pack to, and the checksum.
_MAX_PACKED_BYTES: Final = 32 + MAX_CHUNK_BYTES + MAX_CHUNK_BYTES // 6 + 4
_IDENTIFIER: Final = MAGIC[4:]
_CODEC: Final = pa.Codec("snappy")


class SnappyError(Exception):
    """Bytes that are not of the format. Becomes InvalidMessage where the position is known."""


class SnappyInflater:
    """An `Inflater`. A stream may end after any chunk and has no end mark: `eof` is never set."""

    eof = False
    unused_data = b""

    def __init__(self) -> None:
        self._packed = bytearray()  # of a chunk that is not whole yet
        self._unpacked = bytearray()  # more than the caller asked for
        self._skip = 0  # bytes of a skipped chunk still to come
        self._identified = False

    @property
    def between_chunks(self) -> bool:
        return not self._packed and not self._skip

    def decompress(self, data: bytes, max_length: int) -> bytes:
        self._packed += data
        while len(self._unpacked) < max_length and self._chunk():
            pass
        out = bytes(memoryview(self._unpacked)[:max_length])
        del self._unpacked[:max_length]
        return out

    def _chunk(self) -> bool:
        """Read one chunk if it is there."""
        packed = self._packed
        if self._skip:
            skipped = min(self._skip, len(packed))
            del packed[:skipped]
            self._skip -= skipped
        if len(packed) < 4:
            return False
        kind, size = packed[0], int.from_bytes(packed[1:4], "little")
        if not self._identified and not packed.startswith(MAGIC[:4]):
            raise SnappyError("the stream identifier is missing")
        if 0x80 <= kind <= 0xFE:
            del packed[:4]
            self._skip = size
            return True
        self._check_header(kind, size)
        if len(packed) < 4 + size:
            return False
        body = bytes(memoryview(packed)[4 : 4 + size])
        del packed[: 4 + size]
        if kind == 0xFF:
            if body != _IDENTIFIER:
                raise SnappyError("the stream identifier is wrong")
            self._identified = True
        else:
            self._unpacked += _checked(body[:4], _unpacked(body[4:]) if kind == 0 else body[4:])
        return True

    def _check_header(self, kind: int, size: int) -> None:
        """Whether a chunk can be read, before its body is kept."""
        if kind == 0xFF:
            right = size == len(_IDENTIFIER)
        elif kind <= 0x01:
            limit = _MAX_PACKED_BYTES if kind == 0 else MAX_CHUNK_BYTES + 4
            right = 4 <= size <= limit
        else:
            raise SnappyError(f"a chunk of the unknown type {kind:#04x}")
        if not right:
            raise SnappyError(f"a chunk of type {kind:#04x} cannot have {size} bytes")


def _unpacked(block: bytes) -> bytes:
    """A Snappy block begins with its unpacked size, seven bits a byte, the lowest first."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise SnappyError("a block without a size")
    if size > MAX_CHUNK_BYTES:
        raise SnappyError(f"a block of {size} bytes; the format allows {MAX_CHUNK_BYTES}")
    try:
        unpacked: bytes = _CODEC.decompress(block, size, asbytes=True)
    except (OSError, ValueError) as error:
        raise SnappyError(str(error)) from None
    return unpacked


def pack(data: bytes) -> bytes:
    """A whole stream; a chunk that would not get smaller is stored as it is."""
    chunks = [MAGIC]
    for start in range(0, len(data), MAX_CHUNK_BYTES):
        plain = data[start : start + MAX_CHUNK_BYTES]
        packed: bytes = _CODEC.compress(plain, asbytes=True)
        kind, body = (b"\x00", packed) if len(packed) < len(plain) else (b"\x01", plain)
        size = (len(body) + 4).to_bytes(3, "little")
        chunks += [kind, size, _masked_crc(plain).to_bytes(4, "little"), body]
    return b"".join(chunks)


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _checked(checksum: bytes, data: bytes) -> bytes:
    if _masked_crc(data) != int.from_bytes(checksum, "little"):
        raise SnappyError("a chunk fails its checksum")
    return data
