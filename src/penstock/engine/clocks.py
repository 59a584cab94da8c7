"""How far time has come, for links that wait for it to pass (see `spark.clock`).

Time must not overtake messages: a piece is told of a time only when everything that was appended to any of the
flow's topics before it has been carried through to the state. So: note the time and where the receivers' topics
end; wait until the first piece has decided all of that; note where the topics end that it has cut; and so on to the
last piece. Then time has come to what was noted, less what a message may need from its sender to its topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.flow.decisions import Frontiers
from penstock.limits import CLOCK_MARGIN_S, CLOCK_STEP_S
from penstock.spark.clock import read_clock, write_clock


class Ticking(Protocol):
    """A piece, as far as clocks care. Pieces come in the order of the data."""

    @property
    def decided(self) -> Frontiers: ...

    def ends(self) -> Frontiers:
        """Where the topics that it reads end now."""

    @property
    def clock(self) -> Path | None:
        """The file to write to, if it waits for anything now."""


class Clocks:
    """Of one engine. `look` is called every now and then, by one thread."""

    def __init__(self, pieces: Sequence[Ticking], now_s: Callable[[], float] = time.time) -> None:
        self._pieces = pieces
        self._now_s = now_s
        self._noted_s = 0.0
        self._stage = 0
        self._ends: Frontiers = {}
        self._begin()

    def _begin(self) -> None:
        self._noted_s = self._now_s()
        self._stage = 0
        self._ends = self._pieces[0].ends() if self._pieces else {}

    def look(self) -> None:
        while self._stage < len(self._pieces):
            decided = self._pieces[self._stage].decided
            if any(decided.get(place, 0) < end for place, end in self._ends.items()):
                return
            self._stage += 1
            if self._stage < len(self._pieces):
                self._ends = self._pieces[self._stage].ends()
        self._tell(self._noted_s - CLOCK_MARGIN_S)
        self._begin()

    def _tell(self, passed_s: float) -> None:
        passed_us = int(passed_s * 1_000_000)
        for piece in self._pieces:
            path = piece.clock
            if path is not None and passed_us - read_clock(path) >= CLOCK_STEP_S * 1_000_000:
                write_clock(path, passed_us)
