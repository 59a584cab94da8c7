"""Whether to try again: a query that dies may have got further than the last time."""

from __future__ import annotations

from collections.abc import Callable


class Failures:
    """How often something has failed in a row: without any progress since the last time."""

    def __init__(self, progress: Callable[[], int]) -> None:
        self._progress = progress
        self._seen = progress()
        self._count = 0

    def one_more(self) -> int:
        progress = self._progress()
        self._count = 1 if progress != self._seen else self._count + 1
        self._seen = progress
        return self._count
