"""Bodies of both kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.log.embedded.arrow import decode_arrow
from penstock.log.embedded.frame import LEAN, Header, body_of
from penstock.log.embedded.lean_decode import decode_lean


def decode(
    data: memoryview, position: int, header: Header, since: int = 0
) -> Iterator[pa.RecordBatch]:
    """The frame at `position`, whose body has passed its check; mostly as one batch."""
    body = body_of(data, position, header)
    if header.codec == LEAN:
        yield from decode_lean([body], header.offset, since)
    else:
        yield decode_arrow(body, header)
