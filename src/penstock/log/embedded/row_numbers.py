"""What a partition remembers of those who append rows: the last number of each producer.

Numbers of a producer rise, with gaps or without. One at or below the last is a no-op. A number that was
cut into several frames, and of which a crash left the first few, is finished by sending it again: the same
rows, of which those that are stored are skipped.

Like `Producers`, which it is a part of: `admit` stages, `commit` or `rollback` settles; what is on disk
is learnt from frames or from sidecars.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from penstock.errors import LogBehind, LogError, OutOfOrder
from penstock.limits import MAX_ROW_PRODUCERS, STREAM_EXPIRY_S
from penstock.log.embedded.arrow import RowNumber
from penstock.log.embedded.rows import RowsPart
from penstock.log.interface import Appended

_Known = tuple[RowNumber, int]  # and when it was last used (us)


class RowNumbers:
    def __init__(self) -> None:
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._undo: list[Callable[[], None]] = []

    def admit(self, part: RowsPart, offset: int) -> tuple[RowsPart | None, Appended, RowNumber]:
        """What of the part is new (None: nothing), where it is or will be, and how far that gets
        its producer."""
        before = self._known.get(part.producer)
        stored = 0
        if before is not None:
            last = before[0]
            if part.number < last.number or (part.number == last.number and last.whole):
                where = last.offset if part.number == last.number else -1
                return None, Appended(where, part.count, part.count), last
            if part.number == last.number:
                stored = last.stored
            elif not last.whole:
                raise OutOfOrder(
                    f"producer {part.producer!r}: of number {last.number} only the first "
                    f"{last.stored} rows are stored; send it again before number {part.number}"
                )
        skip = stored - part.first
        if skip < 0:
            raise OutOfOrder(
                f"producer {part.producer!r}: the first rows of number {part.number} were refused"
            )
        if before is not None and skip >= part.count:
            if part.last:
                raise LogError(
                    f"producer {part.producer!r}: number {part.number} has {stored} rows stored and "
                    f"now comes with {part.first + part.count}; a number must bring the same rows"
                )
            return None, Appended(before[0].offset, part.count, part.count), before[0]
        fresh = part.tail(skip) if skip else part
        first = before[0].offset if before is not None and stored else offset
        state = RowNumber(part.producer, part.number, part.first + part.count, part.last, first)
        self._stage(state, before)
        return fresh, Appended(first, part.count, skip), state

    def last(self, producer: str) -> int | None:
        known = self._known.get(producer)
        return None if known is None else known[0].number

    def _stage(self, state: RowNumber, before: _Known | None) -> None:
        name, now_us = state.producer, time.time_ns() // 1000

        def undo() -> None:
            if before is None:
                del self._known[name]
            else:
                self._known[name] = before

        if before is None:
            self._make_room(now_us)
        self._undo.append(undo)
        self._known[name] = (state, now_us)
        self._known.move_to_end(name)

    def _make_room(self, now_us: int) -> None:
        if len(self._known) < MAX_ROW_PRODUCERS:
            return
        name, (_, used_us) = next(iter(self._known.items()))
        if now_us - used_us < STREAM_EXPIRY_S * 1e6:
            raise LogBehind(
                f"{MAX_ROW_PRODUCERS} producers of rows are in use; one that is silent for "
                f"{STREAM_EXPIRY_S / 86_400:.0f} days makes room"
            )
        del self._known[name]

    def commit(self) -> None:
        self._undo.clear()

    def rollback(self) -> None:
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def learn(self, numbers: Iterable[RowNumber], append_us: int) -> None:
        """From a frame; frames come oldest first."""
        for number in numbers:
            self._known[number.producer] = (number, append_us)
            self._known.move_to_end(number.producer)
        while len(self._known) > MAX_ROW_PRODUCERS:
            self._known.popitem(last=False)

    def to_json(self) -> list[list[Any]]:
        """For a sidecar: all producers, since their numbers must outlive the segments."""
        return [
            [n.producer, n.number, n.stored, n.whole, n.offset, used_us]
            for n, used_us in self._known.values()
        ]

    def load(self, stored: list[list[Any]]) -> None:
        """From a sidecar; sidecars come oldest first."""
        for *number, used_us in stored:
            self.learn([RowNumber(*number)], used_us)
