"""Lean frames: what the edge appends. The body:

    u32 runs, u32 messages, u32 bytes of names, u32 bytes of metas, u32 bytes of keys, u32 has keys
    u32[runs] messages of the run      i64[runs] first sequence number of the run
    u32[runs] its name                 i64[runs] its time (us)
    u32[runs] its meta
    u32[messages] payload lengths      i32[messages] key lengths, -1 for none, if there are keys
    names (a JSON array of [peer, stream]), metas (a JSON array of objects), keys, payloads

A *run* is a `Batch` as it was submitted: messages of one stream, numbered without gaps, with one time
and one meta. So a POST of one message costs 28 bytes beside its name, and so does a body of thousands.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import LogError
from penstock.limits import MAX_FRAME_BYTES
from penstock.log.embedded.frame import ALIGN, LEAN, ZEROS, Header, digest, pack_header
from penstock.log.interface import SCHEMA
from penstock.message import Batch, Buffer

_PREFACE = struct.Struct("<6I")


def encode_lean(batches: Sequence[Batch], offset: int, append_us: int, seed: int) -> list[Buffer]:
    """One frame of all these batches, as parts to write one after another.

    Payloads are not copied. The caller keeps the whole below MAX_FRAME_BYTES (`size_bound`).
    """
    n = len(batches)
    names: dict[tuple[str, str], int] = {}
    metas: dict[bytes, int] = {}
    name_of = [names.setdefault((b.peer, b.stream), len(names)) for b in batches]
    meta_of = [metas.setdefault(b.meta, len(metas)) for b in batches]
    counts = [b.count for b in batches]
    count = sum(counts)
    payloads = [b.payload for b in batches]
    lengths: Buffer
    if count == n and all(b.lengths is None for b in batches):
        lengths = struct.pack(f"<{n}I", *map(len, payloads))
    elif n == 1 and batches[0].lengths is not None:
        lengths = batches[0].lengths.astype("<u4", copy=False).tobytes()
    else:
        lengths = b"".join(
            len(b.payload).to_bytes(4, "little")
            if b.lengths is None
            else b.lengths.astype("<u4", copy=False).tobytes()
            for b in batches
        )
    key_lengths, keys = _encode_keys(batches)
    names_json = orjson.dumps(list(names))
    metas_json = b"[" + b",".join(metas) + b"]"
    times = [b.time_us for b in batches]
    prefix = b"".join(
        (
            _PREFACE.pack(
                n, count, len(names_json), len(metas_json), len(keys), key_lengths is not None
            ),
            struct.pack(f"<{3 * n}I", *counts, *name_of, *meta_of),
            struct.pack(f"<{2 * n}q", *[b.seq for b in batches], *times),
            lengths,
            key_lengths or b"",
            names_json,
            metas_json,
            keys,
        )
    )
    parts: list[Buffer] = [prefix, *payloads]
    body_bytes = len(prefix) + sum(map(len, payloads))
    if body_bytes > MAX_FRAME_BYTES:
        raise LogError(f"a frame of {body_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
    if body_bytes % ALIGN:
        parts.append(ZEROS[: -body_bytes % ALIGN])
    if body_bytes < 4096 * len(parts):  # joining is cheaper than many small updates and iovecs
        parts = [b"".join(parts)]
    header = Header(LEAN, body_bytes, count, offset, append_us, max(times), digest(parts, seed))
    return [pack_header(header, seed), *parts]


def _encode_keys(batches: Sequence[Batch]) -> tuple[bytes | None, bytes]:
    if all(b.keys is None for b in batches):
        return None, b""
    keys = list(
        chain.from_iterable([None] * b.count if b.keys is None else b.keys for b in batches)
    )
    lengths = struct.pack(f"<{len(keys)}i", *(-1 if k is None else len(k) for k in keys))
    return lengths, b"".join(k for k in keys if k is not None)


def size_bound(batch: Batch) -> int:
    """No fewer bytes than this batch adds to a frame."""
    keys = 0 if batch.keys is None else sum(len(k) for k in batch.keys if k) + 4 * batch.count
    names = 8 + 6 * (len(batch.peer) + len(batch.stream))  # JSON may escape every character
    return len(batch.payload) + 4 * batch.count + 28 + names + len(batch.meta) + keys


@dataclass(frozen=True, slots=True)
class Run:
    """A batch as it was submitted, without its payloads."""

    peer: str
    stream: str
    seq: int
    count: int
    offset: int


class _Lean:
    """A view of a lean body: where its columns are."""

    __slots__ = (
        "at_keys",
        "at_lengths",
        "at_payload",
        "body",
        "count",
        "has_keys",
        "metas",
        "names",
        "runs",
    )

    def __init__(self, body: memoryview) -> None:
        self.body = body
        self.runs, self.count, names, metas, keys, self.has_keys = _PREFACE.unpack_from(body)
        self.at_lengths = _PREFACE.size + self.runs * 28
        at_names = self.at_lengths + self.count * (8 if self.has_keys else 4)
        at_metas = at_names + names
        self.names: list[list[str]] = orjson.loads(body[at_names:at_metas])
        self.metas: list[dict[str, str]] = orjson.loads(body[at_metas : at_metas + metas])
        self.at_keys = at_metas + metas
        self.at_payload = self.at_keys + keys

    def narrow(self, index: int) -> memoryview:
        """0 messages, 1 names, 2 metas of the runs: u32."""
        start = _PREFACE.size + 4 * self.runs * index
        return self.body[start : start + 4 * self.runs]

    def wide(self, index: int) -> memoryview:
        """0 sequence numbers, 1 times of the runs: i64."""
        start = _PREFACE.size + 12 * self.runs + 8 * self.runs * index
        return self.body[start : start + 8 * self.runs]

    def lengths(self) -> memoryview:
        return self.body[self.at_lengths : self.at_lengths + 4 * self.count]

    def key_lengths(self) -> memoryview:
        start = self.at_lengths + 4 * self.count
        return self.body[start : start + 4 * self.count]


def lean_runs(body: memoryview, offset: int) -> list[Run]:
    """The runs of a lean frame's body, in order."""
    lean = _Lean(body)
    found = []
    columns = zip(
        np.frombuffer(lean.narrow(0), "<u4").tolist(),
        np.frombuffer(lean.narrow(1), "<u4").tolist(),
        np.frombuffer(lean.wide(0), "<i8").tolist(),
        strict=True,
    )
    for count, name, seq in columns:
        peer, stream = lean.names[name]
        found.append(Run(peer, stream, seq, count, offset))
        offset += count
    return found


def decode_lean(bodies: Sequence[memoryview], offset: int) -> pa.RecordBatch:
    """Lean frames that follow each other, as one batch of `SCHEMA`.

    The payloads of a single frame are not copied: they stay in the mapped file.
    """
    leans = [_Lean(body) for body in bodies]
    counts = np.frombuffer(_join([lean.narrow(0) for lean in leans]), "<u4")
    seqs = np.frombuffer(_join([lean.wide(0) for lean in leans]), "<i8")
    times = np.frombuffer(_join([lean.wide(1) for lean in leans]), "<i8")
    peers, peer_of, streams, stream_of = _merge_names(leans)
    metas, meta_of = _merge_metas(leans)
    n = sum(lean.count for lean in leans)
    if len(counts) != n:
        starts = np.cumsum(counts, dtype=np.int64) - counts
        seqs = np.arange(n, dtype=np.int64) + np.repeat(seqs - starts, counts)
        times, peer_of, stream_of, meta_of = (
            np.repeat(column, counts) for column in (times, peer_of, stream_of, meta_of)
        )
    return pa.RecordBatch.from_arrays(
        [
            offsets_array(offset, n),
            pa.array(times.view("datetime64[us]")).cast(SCHEMA.field("time").type),
            pa.DictionaryArray.from_arrays(pa.array(peer_of), pa.array(peers, pa.string())),
            pa.DictionaryArray.from_arrays(pa.array(stream_of), pa.array(streams, pa.string())),
            pa.array(seqs),
            _decode_keys(leans, n),
            _decode_metas(metas, meta_of),
            _binary(
                np.frombuffer(_join([lean.lengths() for lean in leans]), "<u4"),
                _join([lean.body[lean.at_payload :] for lean in leans]),
            ),
        ],
        schema=SCHEMA,
    )


def _join(parts: Sequence[memoryview]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _merge_names(
    leans: Sequence[_Lean],
) -> tuple[list[str], np.ndarray, list[str], np.ndarray]:
    """Peers and streams, each as a dictionary and an index for every run."""
    peers: dict[str, int] = {}
    streams: dict[str, int] = {}
    peer_parts, stream_parts = [], []
    for lean in leans:
        of_peer = [peers.setdefault(peer, len(peers)) for peer, _ in lean.names]
        of_stream = [streams.setdefault(stream, len(streams)) for _, stream in lean.names]
        if lean.runs == 1:
            peer_parts.append(of_peer)
            stream_parts.append(of_stream)
            continue
        name_of = np.frombuffer(lean.narrow(1), "<u4")
        peer_parts.append(np.array(of_peer, np.int32)[name_of])
        stream_parts.append(np.array(of_stream, np.int32)[name_of])
    return (
        list(peers),
        np.concatenate(peer_parts).astype(np.int32, copy=False),
        list(streams),
        np.concatenate(stream_parts).astype(np.int32, copy=False),
    )


def _merge_metas(leans: Sequence[_Lean]) -> tuple[list[dict[str, str]], np.ndarray]:
    metas: list[dict[str, str]] = []
    parts = []
    last: list[dict[str, str]] = []
    base = 0
    for lean in leans:
        if lean.metas != last:  # neighbours often share theirs
            base = len(metas)
            last = lean.metas
            metas.extend(last)
        parts.append(np.frombuffer(lean.narrow(2), "<u4").astype(np.int32) + np.int32(base))
    return metas, np.concatenate(parts)


def offsets_array(first: int, count: int) -> pa.Array:
    return pa.array(np.arange(first, first + count, dtype=np.int64))


def _binary(lengths: np.ndarray, data: Buffer, valid: np.ndarray | None = None) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _decode_keys(leans: Sequence[_Lean], n: int) -> pa.Array:
    if not any(lean.has_keys for lean in leans):
        return pa.nulls(n, pa.binary())
    lengths = np.concatenate(
        [
            np.frombuffer(lean.key_lengths(), "<i4")
            if lean.has_keys
            else np.full(lean.count, -1, np.int32)
            for lean in leans
        ]
    )
    data = _join([lean.body[lean.at_keys : lean.at_payload] for lean in leans])
    return _binary(np.maximum(lengths, 0), data, lengths >= 0)


def _decode_metas(metas: list[dict[str, str]], meta_of: np.ndarray) -> pa.Array:
    if not any(metas):
        zeros = pa.array(np.zeros(len(meta_of) + 1, np.int32))
        empty = pa.array([], pa.string())
        return pa.MapArray.from_arrays(zeros, empty, empty)
    distinct = pa.array([list(meta.items()) for meta in metas], SCHEMA.field("meta").type)
    return distinct.take(pa.array(meta_of))
