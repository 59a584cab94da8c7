"""Sidecars: what a partition knows of those who number their messages, as it was when a segment was sealed.

    u64 check (XXH3-64, seeded, of all that follows), u32 bytes of JSON, u32 keys
    JSON: streams [peer, name, last number, last used (us), complete, runs], rows, whole
    keys: 16 bytes each, then i64 offsets

The newest one is all that recovery needs beside the active segment. The one before it is kept too, should the
newest be damaged; those before are removed. Sidecars of earlier versions are not `whole`: each has the runs
and keys of its own segment only, and recovery reads all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from xxhash import xxh3_64_intdigest

DIGEST_BYTES = 16
_HEAD = struct.Struct("<QII")


@dataclass(frozen=True, slots=True)
class Sidecar:
    whole: bool
    streams: list[list[Any]]
    rows: list[list[Any]]
    keys: dict[bytes, int]  # digest to offset, oldest first


def encode_sidecar(
    streams: list[list[Any]], rows: list[list[Any]], keys: Mapping[bytes, int], seed: int
) -> bytes:
    json = orjson.dumps({"streams": streams, "rows": rows, "whole": True})
    body = b"".join((json, *keys, struct.pack(f"<{len(keys)}q", *keys.values())))
    head = struct.pack("<II", len(json), len(keys))
    return struct.pack("<Q", xxh3_64_intdigest(head + body, seed)) + head + body


def read_sidecar(path: Path, seed: int) -> Sidecar | None:
    """None if it is missing or damaged."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) < _HEAD.size or _HEAD.unpack_from(data)[0] != xxh3_64_intdigest(data[8:], seed):
        return None
    _, json_bytes, count = _HEAD.unpack_from(data)
    at = _HEAD.size + json_bytes
    stored = orjson.loads(data[_HEAD.size : at])
    ends = range(at + DIGEST_BYTES, at + (count + 1) * DIGEST_BYTES, DIGEST_BYTES)
    offsets = struct.unpack_from(f"<{count}q", data, at + count * DIGEST_BYTES)
    keys = {data[end - DIGEST_BYTES : end]: n for end, n in zip(ends, offsets, strict=True)}
    return Sidecar(stored.get("whole", False), stored["streams"], stored["rows"], keys)


def sidecar_bases(folder: Path) -> list[int]:
    """The first offsets of all segments that have one, or had, in order."""
    return sorted(int(path.stem) for path in folder.glob("*.prd") if path.stem.isdigit())
