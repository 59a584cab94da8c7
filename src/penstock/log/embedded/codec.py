"""Bodies of both kinds."""

from __future__ import annotations

import pyarrow as pa

from penstock.log.embedded.arrow import decode_arrow
from penstock.log.embedded.frame import LEAN, Header, body_of
from penstock.log.embedded.lean_decode import decode_lean


def decode(data: memoryview, position: int, header: Header) -> pa.RecordBatch:
    """The frame at `position`, whose body has passed its check."""
    body = body_of(data, position, header)
    if header.codec == LEAN:
        return decode_lean([body], header.offset)
    return decode_arrow(body, header)
