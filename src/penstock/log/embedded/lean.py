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
from functools import lru_cache

import orjson

from penstock.errors import LogError
from penstock.limits import MAX_FRAME_BYTES
from penstock.log.embedded.frame import ALIGN, LEAN, ZEROS, Header, digest, pack_header
from penstock.log.embedded.singles import Singles
from penstock.message import Batch, Buffer, Source

PREFACE = struct.Struct("<6I")
RUN_BYTES = 28
_LITTLE_BYTES = 4096


def encode_lean(
    items: Sequence[Batch | Singles], offset: int, append_us: int, seed: int
) -> list[Buffer]:
    """One frame of all of this, as parts to write one after another.

    Payloads are not copied, unless they are small. The caller keeps the whole below
    MAX_FRAME_BYTES (`size_bound`).
    """
    runs = _Runs(items)
    n, count = len(runs.counts), sum(runs.counts)
    key_lengths, keys = _encode_keys(items)
    names_json = b"[" + b",".join(runs.names) + b"]"
    metas_json = b"[" + b",".join(runs.metas) + b"]"
    prefix = b"".join(
        (
            PREFACE.pack(
                n, count, len(names_json), len(metas_json), len(keys), key_lengths is not None
            ),
            struct.pack(f"<{3 * n}I", *runs.counts, *runs.name_of, *runs.meta_of),
            struct.pack(f"<{2 * n}q", *runs.seqs, *runs.times_us),
            *runs.lengths,
            key_lengths or b"",
            names_json,
            metas_json,
            keys,
        )
    )
    parts: list[Buffer] = [prefix, *runs.payloads]
    body_bytes = len(prefix) + sum(map(len, runs.payloads))
    if body_bytes > MAX_FRAME_BYTES:
        raise LogError(f"a frame of {body_bytes} bytes is over the limit of {MAX_FRAME_BYTES}")
    if body_bytes % ALIGN:
        parts.append(ZEROS[: -body_bytes % ALIGN])
    if body_bytes < 4096 * len(parts):  # joining is cheaper than many small updates and iovecs
        parts = [b"".join(parts)]
    header = Header(
        LEAN, body_bytes, count, offset, append_us, max(runs.times_us), digest(parts, seed)
    )
    return [pack_header(header, seed), *parts]


class _Runs:
    """The columns of a frame to be."""

    def __init__(self, items: Sequence[Batch | Singles]) -> None:
        self.names: dict[bytes, int] = {}
        self.metas: dict[bytes, int] = {}
        self.counts: list[int] = []
        self.name_of: list[int] = []
        self.meta_of: list[int] = []
        self.seqs: list[int] = []
        self.times_us: list[int] = []
        self.lengths: list[bytes] = []
        self.payloads: list[Buffer] = []
        for item in items:
            if isinstance(item, Batch):
                self._add_batch(item)
            else:
                self._add_singles(item)

    def _add_batch(self, batch: Batch) -> None:
        names, metas = self.names, self.metas
        self.name_of.append(names.setdefault(_name(batch.peer, batch.stream), len(names)))
        self.meta_of.append(metas.setdefault(batch.meta, len(metas)))
        self.counts.append(batch.count)
        self.seqs.append(batch.seq)
        self.times_us.append(batch.time_us)
        self.payloads.append(batch.payload)
        self.lengths.append(
            len(batch.payload).to_bytes(4, "little")
            if batch.lengths is None
            else batch.lengths.astype("<u4", copy=False).tobytes()
        )

    def _add_singles(self, singles: Singles) -> None:
        names, metas = self.names, self.metas
        own_names, own_metas, seqs, times_ns, payloads, _ = zip(*singles.items, strict=True)
        self.name_of += [names.setdefault(name, len(names)) for name in own_names]
        self.meta_of += [metas.setdefault(meta, len(metas)) for meta in own_metas]
        self.counts += [1] * len(seqs)
        self.seqs += seqs
        self.times_us += [time_ns // 1000 for time_ns in times_ns]
        self.payloads += payloads
        self.lengths.append(struct.pack(f"<{len(payloads)}I", *map(len, payloads)))


@lru_cache(maxsize=1024)
def _name(peer: str, stream: str) -> bytes:
    return Source(peer, stream).name


def _encode_keys(items: Sequence[Batch | Singles]) -> tuple[bytes | None, bytes]:
    keys: list[bytes | None] = []
    keyed = False
    for item in items:
        own = item.keys if isinstance(item, Batch) else None
        keyed = keyed or own is not None
        keys += [None] * item.count if own is None else own
    if not keyed:
        return None, b""
    lengths = struct.pack(f"<{len(keys)}i", *(-1 if k is None else len(k) for k in keys))
    return lengths, b"".join(k for k in keys if k is not None)


def size_bound(batch: Batch) -> int:
    """No fewer bytes than this batch adds to a frame."""
    keys = 0 if batch.keys is None else sum(len(k) for k in batch.keys if k) + 4 * batch.count
    names = 8 + 6 * (len(batch.peer) + len(batch.stream))  # JSON may escape every character
    return len(batch.payload) + 4 * batch.count + 28 + names + len(batch.meta) + keys


def written_out_bytes(body: memoryview) -> int:
    """About what a body takes as an Arrow batch, which has its meta with every message."""
    runs, count, names_bytes, metas_bytes, _, has_keys = PREFACE.unpack_from(body)
    if metas_bytes * count <= _LITTLE_BYTES:  # no need to look
        return len(body) + int(metas_bytes * count)
    at = PREFACE.size + runs * RUN_BYTES + count * (8 if has_keys else 4) + names_bytes
    sizes = [len(orjson.dumps(meta)) for meta in orjson.loads(body[at : at + metas_bytes])]
    narrow = struct.unpack_from(f"<{3 * runs}I", body, PREFACE.size)
    messages, metas = narrow[:runs], narrow[2 * runs :]
    written_out = sum(n * sizes[meta] for n, meta in zip(messages, metas, strict=True))
    return len(body) + int(written_out)


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
