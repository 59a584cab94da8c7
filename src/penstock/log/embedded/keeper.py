"""Keeping a partition tidy: re-packing sealed segments into Arrow batches, and retention.

Runs beside the writer and readers, usually in another process. `keeper.lock` lets only one keeper at a
partition. A segment with damage in it is left as it is: re-packing would hide what was lost.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.errors import LogLocked
from penstock.limits import PACKED_BYTES, PACKED_ROWS
from penstock.log.embedded.active import sync_folder, write_durably
from penstock.log.embedded.codec import decode_arrow, encode_arrow
from penstock.log.embedded.frame import ARROW, HEADER_BYTES, Header
from penstock.log.embedded.index import Index, encode_index, index_path, load_index
from penstock.log.embedded.lean_decode import decode_lean
from penstock.log.embedded.lock import FileLock
from penstock.log.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    map_file,
    segment_bases,
    segment_header,
    segment_path,
    walk,
)
from penstock.log.interface import TopicConfig

_Frame = tuple[Header, memoryview]


def keep(folder: Path, seed: int, config: TopicConfig) -> None:
    """Re-pack what is sealed and not packed yet, then apply retention."""
    try:
        lock = FileLock(folder / "keeper.lock", what=str(folder))
    except LogLocked:
        return
    try:
        sealed = segment_bases(folder)[:-1]
        for base in sealed:
            _pack(segment_path(folder, base), base, seed, config.compression)
        _retain(folder, sealed, seed, config)
    finally:
        lock.release()


def is_packed(path: Path) -> bool:
    return index_path(path).exists()


def _pack(path: Path, base: int, seed: int, compression: str) -> None:
    if is_packed(path):
        return
    data = map_file(path)
    frames: list[_Frame] = []
    for found in walk(data, SEGMENT_HEADER_BYTES, len(data), seed):
        if found.header is None or found.damage is not None:
            return
        start = found.position + HEADER_BYTES
        frames.append((found.header, data[start : start + found.header.body_bytes]))
    if not frames:
        return
    temporary = path.with_name(path.name + ".tmp")
    rows: list[tuple[int, int, int]] = []
    max_us = -(2**63)
    with temporary.open("wb") as file:
        os.chmod(temporary, 0o600)
        file.write(segment_header(base, seed))
        for batch, append_us in _batches(frames):
            offset = int(batch.column(0)[0].as_py())
            parts = encode_arrow(
                batch, offset, append_us, None if compression == "none" else compression, seed
            )
            max_us = max(max_us, _max_time_us(batch))
            rows.append((offset, file.tell(), max_us))
            file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
        size = file.tell()
    os.rename(temporary, path)
    sync_folder(path.parent)
    last = frames[-1][0]
    index = Index(np.array(rows, np.int64), last.end, last.append_us, packed=True)
    write_durably(index_path(path), encode_index(index, size, seed))


def _max_time_us(batch: pa.RecordBatch) -> int:
    return int(np.max(batch.column(1).cast(pa.int64()).to_numpy()))


def _batches(frames: list[_Frame]) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The same messages in batches of a good size, with the time of their last append."""
    group: list[_Frame] = []
    rows = size = 0
    for frame in frames:
        header, body = frame
        if header.codec == ARROW:  # packed before a crash kept its index from being written
            if group:
                yield _merge(group)
                group, rows, size = [], 0, 0
            yield decode_arrow(body, header), header.append_us
            continue
        group.append(frame)
        rows, size = rows + header.count, size + header.body_bytes
        if rows >= PACKED_ROWS or size >= PACKED_BYTES:
            yield _merge(group)
            group, rows, size = [], 0, 0
    if group:
        yield _merge(group)


def _merge(group: list[_Frame]) -> tuple[pa.RecordBatch, int]:
    return decode_lean([body for _, body in group], group[0][0].offset), group[-1][0].append_us


def _retain(folder: Path, sealed: list[int], seed: int, config: TopicConfig) -> None:
    age_s, size_bytes = config.retention.age_s, config.retention.size_bytes
    if age_s is None and size_bytes is None:
        return
    sizes = {base: segment_path(folder, base).stat().st_size for base in segment_bases(folder)}
    total = sum(sizes.values())
    oldest_us = 0 if age_s is None else int((time.time() - age_s) * 1e6)
    for base in sealed:
        path = segment_path(folder, base)
        too_much = size_bytes is not None and total > size_bytes
        if not too_much:
            if age_s is None:
                return
            index = load_index(path, map_file(path), seed)
            if index.append_us >= oldest_us:
                return
        total -= sizes[base]
        # The segment goes first: an index or sidecar without one is litter, never wrong.
        path.unlink()
        index_path(path).unlink(missing_ok=True)
        if base != sealed[-1]:
            # The newest sidecar holds the highest number of every stream, and must stay.
            path.with_suffix(".prd").unlink(missing_ok=True)
