"""Parks and cuts do not grow for ever: what has been read from them for good may go.

How far that is, the decisions of their readers say. Below where the last decision began nobody reads again, not even to
repeat it after a crash, and neither does Spark, which may be led through the last batch once more. Of a
park whose drain has finished, that is all of it. The keeper deletes, in a process of its own (`Log.trim`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping

from penstock import logs
from penstock.errors import PenstockError
from penstock.flow.decisions import Decisions
from penstock.limits import TRIM_INTERVAL_S
from penstock.log.interface import Log
from penstock.log.names import TopicName

log = logs.get("engine")


class Trimming:
    """Of one flow. Whatever fails here must not stop it, and is tried again."""

    def __init__(
        self,
        engine: Log,
        parks: Mapping[str, Decisions],
        cuts: Iterable[tuple[str, Decisions]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """The decisions of whoever reads a topic, by topic."""
        self._log = engine
        self._parks = dict(parks)
        self._cuts = list(cuts)
        self._clock = clock
        self._next_s = clock()
        self._trimmed: dict[tuple[str, int], int] = {}

    def look(self) -> None:
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + TRIM_INTERVAL_S
        for topic, decisions in self._parks.items():
            self._try(topic, decisions, drains=True)
        for topic, decisions in self._cuts:
            self._try(topic, decisions, drains=False)

    def _try(self, topic: str, decisions: Decisions, *, drains: bool) -> None:
        try:
            for place, offset in decisions.passed(drains=drains).items():
                if place[0] == topic and offset > self._trimmed.get(place, 0):
                    self._log.trim(TopicName.parse(topic), place[1], offset)
                    self._trimmed[place] = offset
        except PenstockError as error:
            log.error("what was read is not deleted", topic=topic, error=str(error))
