"""A group: what one fsync covers. Everything that waits, up to a limit, encoded as few frames."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from penstock.errors import LogError, PenstockError
from penstock.limits import MAX_FRAME_BYTES, MAX_GROUP_BYTES
from penstock.log.embedded.arrow import Provenance, encode_arrow
from penstock.log.embedded.lean import encode_lean, size_bound
from penstock.log.embedded.producers import Producers
from penstock.log.embedded.rows import Bundle, RowsPart
from penstock.log.embedded.singles import Singles
from penstock.log.interface import Appended, Done
from penstock.message import Batch, Buffer

Item = Batch | Singles | RowsPart | Bundle
Queue = deque[tuple[Item, Done]]


@dataclass(slots=True)
class Group:
    end: int  # the offset after its last message
    append_us: int
    parts: list[Buffer] = field(default_factory=list)  # empty if all were repeats, or refused
    frames: int = 0
    waiting: list[tuple[Done, Appended | PenstockError]] = field(default_factory=list)
    messages: int = 0
    held_bytes: int = 0  # in memory, as it was counted when they were queued
    seals: bool = False  # the segment; then nothing else is in it
    took_s: float = 0.0


def next_group(
    queue: Queue, producers: Producers, end: int, seed: int, refusal: LogError | None
) -> Group:
    """Take what waits and encode it: neighbouring batches as one lean frame, rows as Arrow frames."""
    group = Group(end, time.time_ns() // 1000)
    lean: list[Batch | Singles] = []
    size = 0
    while queue:
        item, done = queue[0]
        bound = size_bound(item) if isinstance(item, Batch) else item.size_bound
        if size and size + bound > MAX_GROUP_BYTES:
            break
        queue.popleft()
        group.messages += item.count
        group.held_bytes += item.held_bytes
        try:
            if refusal is not None:
                raise refusal
            if bound > MAX_FRAME_BYTES and not isinstance(item, Bundle):
                raise LogError(f"a batch of {bound} bytes is over {MAX_FRAME_BYTES}")
            if isinstance(item, RowsPart | Bundle):
                _close_lean(group, lean, seed)
                parts = (item,) if isinstance(item, RowsPart) else item.parts
                results = [_add_rows(group, part, producers, seed) for part in parts]
                repeats = sum(one.repeats for one in results)
                result = Appended(results[0].offset, item.count, repeats)
                new = item.count - repeats
            elif isinstance(item, Singles):
                result = Appended(group.end, item.count)
                lean.append(item)
                new = item.count
                group.end += new
            else:
                fresh, result = producers.admit(item, group.end)
                new = 0
                if fresh is not None:
                    lean.append(fresh)
                    new = fresh.count
                    group.end += new
        except PenstockError as error:
            group.waiting.append((done, error))
            continue
        group.waiting.append((done, result))
        size += bound if new else 0
    _close_lean(group, lean, seed)
    return group


def _close_lean(group: Group, lean: list[Batch | Singles], seed: int) -> None:
    if lean:
        first = group.end - sum(item.count for item in lean)
        group.parts += encode_lean(lean, first, group.append_us, seed)
        group.frames += 1
        lean.clear()


def _add_rows(group: Group, part: RowsPart, producers: Producers, seed: int) -> Appended:
    fresh, result, reached = producers.rows.admit(part, group.end)
    if fresh is not None:
        provenance = Provenance(((0, fresh.count),), (reached,))
        group.parts += encode_arrow(
            fresh.rows, group.end, group.append_us, seed, provenance=provenance
        )
        group.frames += 1
        group.end += fresh.count
    return result
