"""Keeping a partition tidy: re-packing sealed segments into Arrow batches, and retention.

Runs beside the writer and readers, usually in another process. `keeper.lock` lets only one keeper at a
partition. A segment with damage in it is left as it is: re-packing would hide what was lost.
"""

from __future__ import annotations

import os
import time
from itertools import islice
from pathlib import Path

import numpy as np

from penstock import faults
from penstock.errors import LogError, LogLocked
from penstock.log.embedded.active import sync_folder, write_durably
from penstock.log.embedded.frame import ARROW, body_of
from penstock.log.embedded.index import Index, encode_index, index_path, load_index
from penstock.log.embedded.lock import FileLock
from penstock.log.embedded.merging import Frame, grouped, is_good, merged
from penstock.log.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    Tail,
    is_aged,
    map_file,
    segment_bases,
    segment_header,
    segment_path,
    walk,
)
from penstock.log.embedded.sidecar import sidecar_bases
from penstock.log.embedded.trim import read_trim
from penstock.log.interface import TopicConfig

_IDLE_SEAL_FRAMES = 1024
"""A segment that nobody appends to is sealed before its age if it has this many frames."""


Damaged = dict[Path, tuple[int, int]]
"""Segments that cannot be packed, as they were then (size, time of the last change)."""


def keep(folder: Path, seed: int, config: TopicConfig, damaged: Damaged) -> None:
    """Re-pack what is sealed and not packed yet, then apply retention.

    `damaged` is what earlier calls found: those are not read again, every few seconds for ever.
    """
    try:
        lock = FileLock(folder / "keeper.lock", what=str(folder))
    except LogLocked:
        return
    try:
        sealed = segment_bases(folder)[:-1]
        try:
            for base in sealed:
                _pack(segment_path(folder, base), base, seed, config.compression, damaged)
        finally:  # retention may be what makes room on a full disk
            _retain(folder, sealed, seed, config)
            for path in [path for path in damaged if path.parent == folder and not path.exists()]:
                del damaged[path]
    finally:
        lock.release()


def is_due(folder: Path, seed: int, config: TopicConfig) -> bool:
    """Whether the last segment is to be sealed although nobody writes: by size or age, or because it
    is full of small frames, which read slowly.

    A look from outside: the lock and recovery cost far more, and would be in the way of a writer.
    """
    try:
        tail = Tail(folder, writable=False)
    except (OSError, LogError):
        return True  # whoever takes the lock repairs it
    state = tail.load()
    tail.close()
    if state is None:
        return True
    if state.position <= SEGMENT_HEADER_BYTES:
        return False
    try:
        data = map_file(segment_path(folder, state.base))
    except FileNotFoundError:
        return False  # sealed, packed and deleted since
    stop = min(state.position, len(data))
    found = walk(data, SEGMENT_HEADER_BYTES, stop, seed, check_bodies=False)
    headers = [frame.header for frame in islice(found, _IDLE_SEAL_FRAMES) if frame.header]
    return (
        not headers
        or len(headers) == _IDLE_SEAL_FRAMES
        or state.position >= config.segment_bytes
        or is_aged(headers[0].append_us, config.segment_age_s)
    )


def is_packed(path: Path) -> bool:
    return index_path(path).exists()


def _pack(path: Path, base: int, seed: int, compression: str, damaged: Damaged) -> None:
    if is_packed(path):
        return
    stat = path.stat()
    state = (stat.st_size, stat.st_mtime_ns)
    if damaged.get(path) == state:
        return
    data = map_file(path)
    if compression == "none" and _stays(data, seed):
        _index(path, data, seed)
        return
    frames: list[Frame] = []
    for found in walk(data, SEGMENT_HEADER_BYTES, len(data), seed):
        if found.header is None or found.damage is not None:
            damaged[path] = state
            return
        frames.append(Frame(found.header, body_of(data, found.position, found.header)))
    if not frames:
        return
    groups = list(grouped(frames))
    if compression == "none" and all(is_good(group) for group in groups):
        _index(path, data, seed)
        return
    temporary = _unfinished(path)
    try:
        rows, size = _rewrite(temporary, base, groups, compression, seed)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    faults.point("keeper.rewritten", base=base)
    os.rename(temporary, path)
    faults.point("keeper.renamed", base=base)
    sync_folder(path.parent)
    last = frames[-1].header
    index = Index(np.array(rows, np.int64), last.end, last.append_us, packed=True)
    write_durably(index_path(path), encode_index(index, size, seed))


def _stays(data: memoryview, seed: int) -> bool:
    """Whether there are only Arrow frames of a good size. No body is read: whoever reads it checks it."""
    found = list(walk(data, SEGMENT_HEADER_BYTES, len(data), seed, check_bodies=False))
    headers = [one.header for one in found if one.header and one.header.codec == ARROW]
    if not headers or len(headers) < len(found):
        return False
    groups = grouped([Frame(header, memoryview(b"")) for header in headers])
    return all(is_good(group) for group in groups)


def _index(path: Path, data: memoryview, seed: int) -> None:
    write_durably(index_path(path), encode_index(load_index(path, data, seed), len(data), seed))


def _unfinished(path: Path) -> Path:
    """Where a segment is written anew. A keeper that was killed leaves it; the next one begins again."""
    return path.with_name(path.name + ".tmp")


def _rewrite(
    path: Path, base: int, groups: list[list[Frame]], compression: str, seed: int
) -> tuple[list[tuple[int, int, int]], int]:
    """Write a segment of merged frames; the rows of its index, and its size."""
    rows: list[tuple[int, int, int]] = []
    max_us = -(2**63)
    with path.open("wb") as file:
        os.chmod(path, 0o600)
        file.write(segment_header(base, seed))
        for group in groups:
            for piece in merged(group):
                max_us = max(max_us, piece.max_time_us)
                rows.append((piece.offset, file.tell(), max_us))
                file.writelines(piece.encode(None if compression == "none" else compression, seed))
                faults.point("keeper.rewriting", base=base)
        file.flush()
        os.fsync(file.fileno())
        return rows, file.tell()


def _retain(folder: Path, sealed: list[int], seed: int, config: TopicConfig) -> None:
    trim = read_trim(folder)
    if trim is not None:
        _trim(folder, sealed, trim)
        return
    age_s, size_bytes = config.retention.age_s, config.retention.size_bytes
    if age_s is None and size_bytes is None:
        return
    sizes = {base: segment_path(folder, base).stat().st_size for base in sealed}
    total = sum(sizes.values()) + _active_bytes(folder)
    oldest_us = 0 if age_s is None else int((time.time() - age_s) * 1e6)
    for base in sealed:
        path = segment_path(folder, base)
        too_much = size_bytes is not None and total > size_bytes
        if not too_much:
            if age_s is None:
                break
            index = load_index(path, map_file(path), seed)
            if index.append_us >= oldest_us:
                break
        total -= sizes[base]
        _delete(path)
    _drop_old_sidecars(folder)


def _trim(folder: Path, sealed: list[int], trim: int) -> None:
    ends = [*sealed[1:], *segment_bases(folder)[-1:]]
    for base, end in zip(sealed, ends, strict=False):
        if end > trim:
            break
        _delete(segment_path(folder, base))
    _drop_old_sidecars(folder)


def _delete(path: Path) -> None:
    # The segment goes first: an index or sidecar without one is litter, never wrong.
    path.unlink()
    index_path(path).unlink(missing_ok=True)
    _unfinished(path).unlink(missing_ok=True)


def _active_bytes(folder: Path) -> int:
    """What is in the segment that is written to. Its file is larger: it is filled with zeros ahead, and
    counting those would take messages that there is room for."""
    try:
        tail = Tail(folder, writable=False)
    except (OSError, LogError):
        return 0  # whoever takes the lock repairs it
    state = tail.load()
    tail.close()
    return 0 if state is None else state.position


def _drop_old_sidecars(folder: Path) -> None:
    """Those whose segment is gone, but for the newest two: each has the number of every stream.

    One that belongs to the active segment (sealing it failed half-way) does not count: recovery
    leaves it aside.
    """
    active = segment_bases(folder)[-1]
    for base in [base for base in sidecar_bases(folder) if base < active][:-2]:
        path = segment_path(folder, base)
        if not path.exists():
            path.with_suffix(".prd").unlink(missing_ok=True)
