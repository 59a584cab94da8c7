"""Reading a partition by memory map, beside its writer, from any process."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from penstock.errors import CorruptBatch, LogError
from penstock.limits import PACKED_ROWS
from penstock.log.embedded.codec import decode
from penstock.log.embedded.index import Index, IndexBuilder, load_index
from penstock.log.embedded.lean_decode import decode_lean
from penstock.log.embedded.segment import (
    SEGMENT_HEADER_BYTES,
    Found,
    Tail,
    TailState,
    check_segment_header,
    damaged,
    damaged_tail,
    gather,
    map_file,
    segment_bases,
    segment_path,
    walk,
)

_MAPPED_SEGMENTS = 16
"""Segments a reader keeps mapped: address space, not memory, but file handles of a kind."""


class _Mapped:
    """A segment's bytes and, once needed, its index."""

    __slots__ = ("base", "data", "index", "path", "sealed")

    def __init__(self, path: Path, base: int, *, sealed: bool) -> None:
        self.path = path
        self.base = base
        self.data = map_file(path)
        self.sealed = sealed
        self.index: Index | None = None


class PartitionReader:
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._tail = Tail(folder, writable=False)
        self._bases: list[int] = []
        self._listed_for = -1
        self._mapped: OrderedDict[int, _Mapped] = OrderedDict()
        self._active: IndexBuilder | None = None
        self._corrupt: dict[tuple[str, int], CorruptBatch] = {}

    @property
    def corrupt(self) -> list[CorruptBatch]:
        return list(self._corrupt.values())

    def begin(self) -> int:
        self._listed_for = -1  # retention may have moved it
        return self._segments(self._state())[0]

    def end(self) -> int:
        return self._state().end

    def state(self) -> TailState:
        return self._state()

    def read(
        self, offset: int, *, end: int | None = None, max_rows: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        state = self._state()
        stop = state.end if end is None else min(end, state.end)
        left = stop - offset if max_rows is None else max_rows
        while offset < stop and left > 0:
            bases = self._segments(state)
            offset = max(offset, bases[0])
            at = bisect_right(bases, offset) - 1
            upper = bases[at + 1] if at + 1 < len(bases) else state.end
            segment = self._map(bases[at], state)
            if segment is None:  # retention took it since it was listed
                self._listed_for = -1
                if segment_bases(self._folder)[:1] == bases[:1]:
                    raise LogError(f"{segment_path(self._folder, bases[at])} has gone")
                continue
            for first, batch in self._frames(
                segment, state, offset, upper, min(left, stop - offset)
            ):
                if first >= stop:
                    return
                batch = batch.slice(0, min(batch.num_rows, stop - first, left))
                left -= batch.num_rows
                yield batch
                if left <= 0:
                    return
            offset = upper

    def offset_at(self, time_us: int) -> int:
        state = self._state()
        bases = self._segments(state)
        for at, base in enumerate(bases):
            segment = self._map(base, state)
            if segment is None:
                continue
            rows = self._index(segment, state).rows
            if not len(rows) or rows[-1, 2] < time_us:
                continue
            upper = bases[at + 1] if at + 1 < len(bases) else state.end
            row = int(np.searchsorted(rows[:, 2], time_us))
            for first, batch in self._frames(segment, state, int(rows[row, 0]), upper, PACKED_ROWS):
                times = batch.column(1).cast(pa.int64()).to_numpy()
                hits = np.flatnonzero(times >= time_us)
                if len(hits):
                    return first + int(hits[0])
        return state.end

    def advance(self, offset: int, stop: int, max_bytes: int) -> tuple[int, int]:
        """How far `max_bytes` of what is stored reach from `offset`, at most to `stop`.

        Gives that offset, and the bytes up to there. Inside a frame it is an estimate, as if all its
        messages had one size; nothing but headers is read.
        """
        state = self._state()
        used_bytes = 0
        while offset < min(stop, state.end):
            bases = self._segments(state)
            at = max(0, bisect_right(bases, offset) - 1)
            upper = bases[at + 1] if at + 1 < len(bases) else state.end
            segment = self._map(bases[at], state)
            if segment is None:  # retention takes it: it costs nothing to read
                offset = min(stop, upper)
                continue
            rows = self._index(segment, state).rows
            offsets = np.append(rows[:, 0], upper)
            positions = np.append(
                rows[:, 1], len(segment.data) if segment.sealed else state.position
            )
            here, there = np.interp([offset, min(stop, upper)], offsets, positions)
            left_bytes = max_bytes - used_bytes
            if there - here > left_bytes:
                reached = int(np.interp(here + left_bytes, positions, offsets))
                return max(offset, reached), used_bytes + left_bytes
            used_bytes += int(there - here)
            offset = min(stop, upper)
        return offset, used_bytes

    def wait(self, offset: int, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        pause_s = 0.001
        while self._state().end <= offset:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, 0.02)
        return True

    def verify(self) -> list[CorruptBatch]:
        """Check every byte that readers may see."""
        state = self._state()
        bases = self._segments(state)
        for at, base in enumerate(bases):
            segment = self._map(base, state)
            if segment is None:
                continue
            stop = _stop(segment, state)
            if (reason := check_segment_header(segment.data, base, self._seed)) is not None:
                found = Found(0, SEGMENT_HEADER_BYTES, None, reason)
                self._note(damaged(segment.path, found, base, base))
            upper = bases[at + 1] if at + 1 < len(bases) else state.end
            expected = base
            for found in walk(segment.data, SEGMENT_HEADER_BYTES, stop, self._seed):
                expected = self._next(segment, found, expected, upper, stop)
            self._missing(segment, expected, upper)
        return self.corrupt

    def release(self) -> None:
        """Unmap what is mapped, so that segments removed by retention free their space; read on later."""
        self._mapped.clear()
        self._corrupt.clear()

    def close(self) -> None:
        self._mapped.clear()
        self._tail.close()

    # --- Segments ------------------------------------------------------------------------------

    def _state(self) -> TailState:
        state = self._tail.load()
        if state is None:
            raise damaged_tail(self._folder)
        return state

    def _segments(self, state: TailState) -> list[int]:
        if self._listed_for != state.base:
            listed = [base for base in segment_bases(self._folder) if base <= state.base]
            self._bases = listed or [state.base]
            self._listed_for = state.base
        return self._bases

    def _map(self, base: int, state: TailState) -> _Mapped | None:
        segment = self._mapped.get(base)
        sealed = base != state.base
        if (
            segment is None
            or segment.sealed != sealed
            or (not sealed and len(segment.data) < state.position)
        ):
            try:
                segment = _Mapped(segment_path(self._folder, base), base, sealed=sealed)
            except FileNotFoundError:
                return None
            self._mapped[base] = segment
            while len(self._mapped) > _MAPPED_SEGMENTS:
                self._mapped.popitem(last=False)
        self._mapped.move_to_end(base)
        return segment

    def _index(self, segment: _Mapped, state: TailState) -> Index:
        if not segment.sealed:
            built = self._active
            if built is None or built.base != segment.base or built.position > state.position:
                built = self._active = IndexBuilder(segment.base, self._seed)
            return built.extend(segment.data, state.position)
        if segment.index is None:
            segment.index = load_index(segment.path, segment.data, self._seed)
        return segment.index

    def _frames(
        self, segment: _Mapped, state: TailState, offset: int, upper: int, wanted: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Valid batches from `offset` to the segment's end; damage is noted on the way.

        Each comes with the offset of its first message. `wanted` is how many messages the caller
        will take at most: small frames are not gathered far beyond it.
        """
        data = segment.data
        stop = _stop(segment, state)
        position, expected = SEGMENT_HEADER_BYTES, segment.base
        if offset > segment.base:
            rows = self._index(segment, state).rows
            row = int(np.searchsorted(rows[:, 0], offset, side="right")) - 1
            if row >= 0:
                expected, position = int(rows[row, 0]), int(rows[row, 1])
        while position < stop:
            small = gather(data, position, stop, self._seed, min(wanted, PACKED_ROWS))
            if small is not None:
                expected, position = small.end, small.stop
                if expected > offset:
                    yield from _since(offset, decode_lean(small.bodies, small.offset, offset))
                continue
            found = next(walk(data, position, stop, self._seed), None)
            if found is None:
                break
            expected = self._next(segment, found, expected, upper, stop)
            position = found.end
            if found.damage is None and found.header is not None and expected > offset:
                yield from _since(offset, decode(data, found.position, found.header, offset))
        self._missing(segment, expected, upper)

    def _next(self, segment: _Mapped, found: Found, expected: int, upper: int, stop: int) -> int:
        """Note damage, and offsets that nothing covers; says which offset comes next."""
        if found.header is None:
            # How many messages were there shows only in the frame behind.
            following = _offset_after(segment.data, found.end, stop, self._seed)
            last = (upper if following is None else following) - 1
            self._note(damaged(segment.path, found, expected, max(expected, last)))
            return max(expected, last + 1)
        if found.damage is not None:
            self._note(damaged(segment.path, found, found.header.offset, found.header.end - 1))
        return found.header.end

    def _missing(self, segment: _Mapped, expected: int, upper: int) -> None:
        if expected < upper:
            end = len(segment.data)
            gap = Found(end, end, None, "the segment ends early")
            self._note(damaged(segment.path, gap, expected, upper - 1))

    def _note(self, corrupt: CorruptBatch) -> None:
        self._corrupt.setdefault((corrupt.path, corrupt.position), corrupt)


def _since(offset: int, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """What of these is at `offset` or after it, with the offset of its first message."""
    for batch in batches:
        first = batch.column(0)[0].as_py()
        if offset <= first:
            yield first, batch
        elif offset < first + batch.num_rows:
            yield offset, batch.slice(offset - first)


def _stop(segment: _Mapped, state: TailState) -> int:
    """Where reading ends. What the active segment has mapped behind it may be cut off by its writer at
    any moment: whoever looks there is killed (SIGBUS)."""
    return len(segment.data) if segment.sealed else min(state.position, len(segment.data))


def _offset_after(data: memoryview, position: int, stop: int, seed: int) -> int | None:
    for found in walk(data, position, stop, seed, check_bodies=False):
        if found.header is not None:
            return found.header.offset
    return None
