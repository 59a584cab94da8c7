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

import orjson

from penstock.errors import LogError
from penstock.limits import MAX_FRAME_BYTES
from penstock.log.embedded.frame import ALIGN, LEAN, ZEROS, Header, digest, pack_header
from penstock.message import Batch, Buffer

PREFACE = struct.Struct("<6I")
RUN_BYTES = 28


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
            PREFACE.pack(
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


@dataclass(slots=True)  # not frozen: recovery makes one for every run it finds
class Run:
    """A batch as it was submitted, without its payloads."""

    peer: str
    stream: str
    seq: int
    count: int
    offset: int


def lean_runs(body: memoryview, offset: int) -> list[Run]:
    """The runs of a lean frame's body, in order."""
    runs, count, names_bytes, _, _, has_keys = PREFACE.unpack_from(body)
    at_names = PREFACE.size + runs * RUN_BYTES + count * (8 if has_keys else 4)
    names = orjson.loads(body[at_names : at_names + names_bytes])
    narrow = struct.unpack_from(f"<{2 * runs}I", body, PREFACE.size)
    seqs = struct.unpack_from(f"<{runs}q", body, PREFACE.size + 12 * runs)
    found = []
    for messages, name, seq in zip(narrow[:runs], narrow[runs:], seqs, strict=True):
        peer, stream = names[name]
        found.append(Run(peer, stream, seq, messages, offset))
        offset += messages
    return found
