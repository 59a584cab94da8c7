"""Which message a sink refuses that answers: found by halves, among those that wait in its park.

A sink that is down is tried again, for ever; nothing here counts that. But one may answer, and refuse what it is given:
a program votes to roll back, or `write` stumbles over a payload. If that is one message's fault, no message behind it
would ever get through. So:

1. A step of a drain that was refused REFUSED_TRIES times in a row is halved, and its first part tried; and so on: what
   is taken is delivered, what is refused is halved again, until one message is alone.
2. A message that is refused alone as often is *suspect*. It is to blame if the sink takes others: some that wait behind it
   are tried without being delivered (`candidates`). If it takes none, it is waited for.
3. Where nothing waits behind it, or what the sink is given cannot be taken back, it is to blame if some were taken since the
   search began; otherwise only after REFUSED_ALONE tries, in which the sink's own trouble has had time to pass.

All of it is in memory: after a restart the search begins anew, with what is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from penstock.limits import DRAIN_ROWS, REFUSED_ALONE, REFUSED_TRIALS, REFUSED_TRIES

Ranges = Mapping[int, tuple[int, int]]
"""Offsets of a park, by partition."""


@dataclass(slots=True)
class Refusals:
    """Of one drain. Sizes are in messages."""

    until: dict[int, int] | None = None
    """While it is searched: what is refused is before these offsets of the park, or at the first behind the frontier."""

    taken: bool = False
    """Whether the sink has taken anything since the search began."""

    _step: dict[int, tuple[int, int]] | None = None
    _count: int = 0

    def rows(self, left: int) -> int:
        """How much the next step takes of what is left to search."""
        return DRAIN_ROWS if self.until is None else max(1, left // 2)

    def accepted(self) -> None:
        self.taken = True
        self._step, self._count = None, 0

    def given_up(self) -> None:
        """The message that was alone. The next one needs proof of its own."""
        self.taken = False
        self._step, self._count = None, 0

    def over(self) -> None:
        """What was searched is through, or given up."""
        self.until, self.taken = None, False
        self._step, self._count = None, 0

    def down(self) -> None:
        """It did not answer, so the refusals before may have been the beginning of that."""
        self._count = 0

    def refused(self, ranges: Ranges, size: int) -> bool:
        """Whether to go on at once, with a smaller part."""
        if self._step != ranges:
            self._step, self._count = dict(ranges), 0
        self._count += 1
        if size <= 1 or (self.until is None and self._count < REFUSED_TRIES):
            return False
        if self.until is None:
            self.taken = False
        self.until = {partition: stop for partition, (_, stop) in ranges.items()}
        self._count = 0
        return True

    @property
    def is_suspect(self) -> bool:
        """Whether the message alone was refused often enough to look what becomes of others."""
        return self._count >= REFUSED_TRIES

    @property
    def is_hopeless(self) -> bool:
        return self._count >= REFUSED_ALONE

    def __str__(self) -> str:
        return f"refused {self._count} times"


def candidates(suspect: Ranges, ends: Mapping[int, int]) -> Iterator[dict[int, tuple[int, int]]]:
    """Single messages behind it, each further away than the last: what is wrong often comes in bursts."""
    *_, (partition, (_, stop)) = suspect.items()  # of others, what was lost may come with it
    for trial in range(REFUSED_TRIALS):
        at = stop + 2**trial - 1
        if at >= ends.get(partition, 0):
            return
        yield {partition: (at, at + 1)}
