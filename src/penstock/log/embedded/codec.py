"""Bodies of both kinds: decoding either, and Arrow frames, which re-packing leaves."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from penstock.log.embedded.frame import (
    ALIGN,
    ARROW,
    HEADER_BYTES,
    LEAN,
    ZEROS,
    Header,
    digest,
    pack_header,
)
from penstock.log.embedded.lean import Run, lean_runs
from penstock.log.embedded.lean_decode import decode_lean, offsets_array
from penstock.log.interface import SCHEMA
from penstock.message import Buffer


def encode_arrow(
    batch: pa.RecordBatch, offset: int, append_us: int, compression: str | None, seed: int
) -> list[Buffer]:
    """One frame of a batch of `SCHEMA`; the offset column is implied by the header and left out."""
    sink = pa.BufferOutputStream()
    stored = batch.drop_columns(["offset"])
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, stored.schema, options=options) as stream:
        stream.write_batch(stored)
    body = sink.getvalue()
    pad = -body.size % ALIGN
    parts: list[Buffer] = [memoryview(body), ZEROS[:pad]]
    max_us = int(np.max(batch.column("time").cast(pa.int64()).to_numpy()))
    check = digest(parts, seed)
    header = Header(ARROW, body.size, batch.num_rows, offset, append_us, max_us, check)
    return [pack_header(header, seed), *parts]


def decode_arrow(body: memoryview, header: Header) -> pa.RecordBatch:
    """An Arrow frame as a batch of `SCHEMA`, without copying unless it is compressed."""
    with pa.ipc.open_stream(pa.py_buffer(body[: header.body_bytes])) as stream:
        stored = stream.read_next_batch()
    columns = [offsets_array(header.offset, stored.num_rows), *stored.columns]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def decode(data: memoryview, position: int, header: Header) -> pa.RecordBatch:
    """The frame at `position`, whose body has passed its check."""
    body = data[position + HEADER_BYTES : position + HEADER_BYTES + header.body_bytes]
    return (
        decode_lean([body], header.offset) if header.codec == LEAN else decode_arrow(body, header)
    )


def frame_runs(data: memoryview, position: int, header: Header) -> list[Run]:
    """Who wrote what in a lean frame; the basis of idempotence after a restart."""
    body = data[position + HEADER_BYTES : position + HEADER_BYTES + header.body_bytes]
    if header.codec == LEAN:
        return lean_runs(body, header.offset)
    batch = decode_arrow(body, header)
    peers, streams = batch.column("peer").to_pylist(), batch.column("stream").to_pylist()
    seqs = batch.column("seq").to_pylist()
    return [
        Run(peer, stream, seq, 1, header.offset + i)
        for i, (peer, stream, seq) in enumerate(zip(peers, streams, seqs, strict=True))
    ]
