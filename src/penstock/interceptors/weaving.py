"""Many payloads with something before or after each, in one go: the way out of framing interceptors."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.interceptors.interface import Payloads

FEW: Final = 16
"""Up to here a loop starts faster."""

_MAX_BYTES: Final = 2**31 - 1  # of an Arrow column


def can_weave(payloads: Payloads, added_bytes: int) -> bool:
    """Whether it pays and fits; `added_bytes` are those around each payload, at most."""
    count = payloads.count
    return count > FEW and len(payloads.blob) + count * added_bytes <= _MAX_BYTES


def weave(before: Any, payloads: Payloads, after: bytes) -> memoryview:
    """`before` is a binary column with a value for each payload, or None."""
    assert payloads.lengths is not None
    offsets = np.zeros(payloads.count + 1, np.int32)
    np.cumsum(payloads.lengths, out=offsets[1:])
    parts = [binary(offsets, payloads.blob), pa.scalar(after, pa.binary())]
    if before is not None:
        parts.insert(0, before)
    woven = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
    _, ends, data = woven.buffers()
    size = int(np.frombuffer(ends, np.int32)[woven.offset + len(woven)])
    return memoryview(data)[:size]


def binary(offsets: npt.NDArray[np.int32], data: Any) -> Any:
    """A binary column over bytes that are not copied."""
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )
