"""The active segment of a partition: the only file that is ever appended to.

Used by one thread at a time: the writer's committer, or the caller of `append`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from penstock import disk
from penstock.errors import CorruptBatch
from penstock.limits import PREALLOCATE_BYTES, SEGMENT_FRAMES
from penstock.log.embedded.frame import body_of
from penstock.log.embedded.producers import Producers
from penstock.log.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    Tail,
    TailState,
    check_segment_header,
    damaged,
    is_aged,
    map_file,
    segment_bases,
    segment_header,
    segment_path,
    walk,
)
from penstock.log.embedded.sidecar import read_sidecar, sidecar_bases
from penstock.message import Buffer

_IOV_MAX = 1024
_ZEROS = bytes(1 << 20)
_FIRST_AHEAD_BYTES = 128 * 1024
"""Zeros ahead of the first small commit; twice as many each time. Most topics stay small."""
_NO_ROOM_S = 30.0
"""After a full disk left no room for zeros, how long to do without them."""
_BEGUN_BYTES = 1024 * 1024
"""So much of a commit is written, and the disk begins with it. A commit that is smaller is synced at once anyway."""
_SMALL_COMMIT_BYTES = 128 * 1024
"""Commits above this gain nothing from zero-filling: it would write everything twice."""


class ActiveSegment:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._fd = -1
        self._tail = Tail(folder, writable=True)
        self.base = 0
        self.position = SEGMENT_HEADER_BYTES
        self.end = 0
        self.frames = 0
        self.began_us = 0  # when its first frame was appended
        self._whole: int | None = None  # the segment of the newest sidecar that has everything
        self._append_us = 0
        self._filled_to = 0
        self._last_size = 0
        self._ahead = _FIRST_AHEAD_BYTES
        self._no_room_until_s = 0.0
        self.corrupt: list[CorruptBatch] = []

    # --- Recovery: see the module's `__init__` for the rules -----------------------------------

    def recover(self, producers: Producers) -> None:
        bases = segment_bases(self._folder)
        active = bases[-1] if bases else 0
        # A sidecar of the active segment is left aside: sealing it was broken off, or failed.
        sidecars = [base for base in sidecar_bases(self._folder) if base < active]
        self._load_newest(sidecars, producers)
        known = -1 if self._whole is None else self._whole
        for base in sorted({*sidecars, *bases[:-1]}):
            if base > known:
                self._learn(base, producers)
        if not bases:
            self._create(0)
        else:
            self._recover_last(active, producers)
        producers.forget_runs_before(bases[0] if bases else 0)
        self._publish()

    def _load_newest(self, bases: list[int], producers: Producers) -> None:
        """From the newest sidecar that is sound, if that is one which makes the others needless."""
        for base in reversed(bases):
            sidecar = read_sidecar(self._sidecar_path(base), self._seed)
            if sidecar is not None:
                if sidecar.whole:
                    producers.load(sidecar)
                    self._whole = base
                return

    def _learn(self, base: int, producers: Producers) -> None:
        sidecar = read_sidecar(self._sidecar_path(base), self._seed)
        path = segment_path(self._folder, base)
        if sidecar is not None:
            producers.load(sidecar)
        elif path.exists():
            data = map_file(path)
            for found in walk(data, SEGMENT_HEADER_BYTES, len(data), self._seed):
                if found.header is not None and found.damage is None:
                    producers.learn(body_of(data, found.position, found.header), found.header)

    def _sidecar_path(self, base: int) -> Path:
        return segment_path(self._folder, base).with_suffix(".prd")

    def _recover_last(self, base: int, producers: Producers) -> None:
        path = segment_path(self._folder, base)
        known = self._tail.load()
        durable = known.position if known is not None and known.base == base else None
        data = map_file(path)
        self.base = self.end = base
        self.position = SEGMENT_HEADER_BYTES
        for found in walk(data, SEGMENT_HEADER_BYTES, len(data), self._seed):
            if found.damage is not None:
                last_valid = durable if durable is not None else _last_valid(data, self._seed)
                if found.position >= last_valid:
                    break  # a torn tail
                first = self.end if found.header is None else found.header.offset
                last = first if found.header is None else found.header.end - 1
                self.corrupt.append(damaged(path, found, first, last))
                self.end = last + 1
            if found.header is not None and found.damage is None:
                self.end, self._append_us = found.header.end, found.header.append_us
                self.began_us = self.began_us or self._append_us
                producers.learn(body_of(data, found.position, found.header), found.header)
            self.position = found.end
            self.frames += 1
        if known is not None and known.base == base and known.end > self.end:
            self.end = known.end  # offsets once given out are never given out again
            self.position = max(self.position, known.position)
        header_damage = check_segment_header(data, base, self._seed)
        size = len(data)
        del data
        self._open(path)
        if header_damage is not None and self.frames == 0:
            os.pwrite(self._fd, segment_header(base, self._seed), 0)
        if size != self.position:
            os.ftruncate(self._fd, self.position)
        os.fsync(self._fd)

    # --- Appending -----------------------------------------------------------------------------

    def write(self, parts: Sequence[Buffer], frames: int, end: int, append_us: int) -> float:
        """Append frames and make them durable; says how long the disk took, in seconds.

        On OSError nothing has changed, as far as readers and the next append can tell.
        """
        size = sum(map(len, parts))
        try:
            _write_all(self._fd, parts, self.position)
            started = time.perf_counter()
            os.fdatasync(self._fd)
            took_s = time.perf_counter() - started
        except OSError:
            self._cut_back()
            raise
        if not self.frames:
            self.began_us = append_us
        self.position += size
        self.end = end
        self.frames += frames
        self._append_us = append_us
        self._last_size = size
        self._publish()
        return took_s

    def is_full(self, segment_bytes: int, segment_age_s: float) -> bool:
        if self.frames == 0:
            return False
        return (
            self.position >= segment_bytes
            or self.frames >= SEGMENT_FRAMES
            or is_aged(self.began_us, segment_age_s)
        )

    def seal(self, sidecar: bytes) -> None:
        """Close this segment and begin the next. On OSError this one stays the active one."""
        sealed = self.base
        write_durably(self._sidecar_path(sealed), sidecar)
        old_fd, position = self._fd, self.position
        self._create(self.end)
        with contextlib.suppress(OSError):  # zeros that stay at its end are the end, for readers
            os.ftruncate(old_fd, position)
            os.fsync(old_fd)
        os.close(old_fd)
        self._publish()
        self._drop_sidecars_before(self._whole)
        self._whole = sealed

    def _drop_sidecars_before(self, previous: int | None) -> None:
        """The newest two have everything twice."""
        if previous is not None:
            with contextlib.suppress(OSError):
                for base in sidecar_bases(self._folder):
                    if base < previous:
                        self._sidecar_path(base).unlink(missing_ok=True)

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.position)
            os.close(self._fd)
            self._fd = -1
        self._tail.close()

    def _create(self, base: int) -> None:
        path = segment_path(self._folder, base)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, segment_header(base, self._seed), 0)
            os.fsync(fd)
            sync_folder(self._folder)
        except OSError:
            os.close(fd)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        self._fd = fd
        self.base = self.end = base
        self.position = self._filled_to = SEGMENT_HEADER_BYTES
        self.frames = self.began_us = 0

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._filled_to = self.position

    def _publish(self) -> None:
        self._tail.store(TailState(self.base, self.position, self.end, self._append_us))

    def _cut_back(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self.position)
        self._filled_to = self.position

    def fill_ahead(self) -> None:
        """Keep zeros ahead of small commits. Losing the race with a full disk costs only speed.

        Apart from `write`, so that whoever waits for that need not wait for this.
        """
        size = self._last_size
        if not size or size > _SMALL_COMMIT_BYTES or self.position + 2 * size <= self._filled_to:
            return
        if time.monotonic() < self._no_room_until_s:
            return
        start = max(self.position, self._filled_to)
        stop = start + self._ahead
        self._ahead = min(2 * self._ahead, PREALLOCATE_BYTES)
        try:
            for at in range(start, stop, len(_ZEROS)):
                os.pwrite(self._fd, _ZEROS[: stop - at], at)
            os.fdatasync(self._fd)
        except OSError:
            self._cut_back()
            # Or a nearly full disk would be filled up and emptied again with every commit.
            self._no_room_until_s = time.monotonic() + _NO_ROOM_S
            return
        self._filled_to = stop


def _last_valid(data: memoryview, seed: int) -> int:
    """The position of the last valid frame: without a `tail`, damage before it is not a torn tail."""
    positions = [
        found.position
        for found in walk(data, SEGMENT_HEADER_BYTES, len(data), seed)
        if found.damage is None
    ]
    return positions[-1] if positions else 0


def _write_all(fd: int, parts: Sequence[Buffer], position: int) -> None:
    """Much of it goes piece by piece: the disk is at work on one while the next is copied to it."""
    for chunk, size in _pieces(parts):
        written = os.pwritev(fd, chunk, position)
        if written < size:  # a nearly full disk, or a signal: finish it, or get the error
            rest = memoryview(b"".join(chunk))[written:]
            while rest:
                done = os.pwrite(fd, rest, position + size - len(rest))
                rest = rest[done:]
        if size >= _BEGUN_BYTES:
            disk.begin(fd, position, size)
        position += size


def _pieces(parts: Sequence[Buffer]) -> Iterator[tuple[list[Buffer], int]]:
    chunk: list[Buffer] = []
    size = 0
    for part in parts:
        chunk.append(part)
        size += len(part)
        if size >= _BEGUN_BYTES or len(chunk) == _IOV_MAX:
            yield chunk, size
            chunk, size = [], 0
    if chunk:
        yield chunk, size


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file's content: a reader sees the old or the new, never half."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _write_all(fd, [data], 0)
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(fd)
    os.rename(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
