"""Many offsets as one bit each: for events that may be very many, of which only the place matters."""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from penstock.errors import LogError

Offsets = npt.NDArray[np.int64]


def pack(offsets: Offsets) -> tuple[int, bytes]:
    """The first offset, and a bit for each from there on. There must be at least one."""
    start = int(offsets.min())
    bits = np.zeros(int(offsets.max()) - start + 1, np.bool_)
    bits[offsets - start] = True
    return start, zlib.compress(np.packbits(bits).tobytes(), 1)


def unpack(start: int, bits: bytes) -> Offsets:
    try:
        flags = np.unpackbits(np.frombuffer(zlib.decompress(bits), np.uint8))
    except zlib.error as error:
        raise LogError(f"the list of parked messages is damaged: {error}") from None
    return np.flatnonzero(flags).astype(np.int64) + start
