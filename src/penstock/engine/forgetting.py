"""Receipts do not outlive their messages: what retention has taken from a receiver's topic is forgotten.

The keeper applies retention, in a process of its own; receipts are written by the engine alone, so it looks where
topics begin now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from penstock import logs
from penstock.errors import PenstockError
from penstock.flow.receipts import Receipts
from penstock.limits import FORGET_INTERVAL_S
from penstock.log.interface import Log
from penstock.log.names import TopicName

log = logs.get("engine")


class Forgetting:
    """Of one flow. Whatever fails here must not stop it, and is tried again."""

    def __init__(
        self,
        receipts: Receipts,
        engine: Log,
        topics: Iterable[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._receipts = receipts
        self._log = engine
        self._topics = [TopicName.parse(topic) for topic in topics]
        self._clock = clock
        self._next_s = clock()

    def look(self) -> None:
        if self._clock() < self._next_s:
            return
        self._next_s = self._clock() + FORGET_INTERVAL_S
        for topic in self._topics:
            try:
                self._forget(topic)
            except PenstockError as error:
                log.error("receipts are not removed", topic=str(topic), error=str(error))

    def _forget(self, topic: TopicName) -> None:
        for part in self._log.describe(topic).partitions:
            if part.begin:
                gone = self._receipts.forget_before(str(topic), part.partition, part.begin)
                if gone:
                    log.debug("receipts went with their messages", topic=str(topic), receipts=gone)
