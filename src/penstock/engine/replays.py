"""Replayed dead letters, as the engine sees them: what was left half-way is finished, receipts follow."""

from __future__ import annotations

import threading
from pathlib import Path

from penstock import logs
from penstock.errors import PenstockError
from penstock.flow.receipts import Receipts
from penstock.flow.replay import DeadLetterBox
from penstock.flow.replayed import Resolver, database
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName

log = logs.get("engine")


class Replays:
    """Of one flow. Whatever fails here must not stop it, and is tried again."""

    def __init__(self, data_dir: Path, engine: EmbeddedLog, letters: str, receipts: Receipts):
        self._data_dir = data_dir
        self._log = engine
        self._letters = TopicName.parse(letters)
        self._resolver = Resolver(data_dir, receipts)
        self._lock = threading.Lock()
        self._closed = False

    def finish(self) -> None:
        """Replays that were killed half-way, perhaps with the machine."""
        if not database(self._data_dir).exists():
            return
        try:
            box = DeadLetterBox(self._data_dir, self._log, self._letters)
            try:
                box.finish()
            finally:
                box.close()
        except PenstockError as error:
            log.warning("a replay that was killed cannot be finished", error=str(error))

    def resolve(self) -> None:
        """Receipts of messages whose replays have ended."""
        with self._lock:
            if self._closed:
                return
            try:
                self._resolver.look()
            except PenstockError as error:
                log.error("receipts of replayed messages cannot be written", error=str(error))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._resolver.close()
