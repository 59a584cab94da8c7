"""A partition as an appender sees it: a lock, and a name."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path

from penstock.log.embedded.appends import sockets
from penstock.log.embedded.lock import current_holder
from penstock.log.names import TopicName


@dataclass(frozen=True, slots=True)
class Place:
    """A partition, and where to look for who owns it."""

    data_dir: Path
    lock: Path
    topic: TopicName
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"

    def connect(self, timeout_s: float) -> socket.socket | None:
        """A connection to whoever owns the partition, if that is someone who serves others.

        None if nobody owns it, or the owner does not answer: it has died, or is not ready yet.
        """
        holder = current_holder(self.lock)
        if holder is None or holder.socket is None:
            return None
        try:
            return sockets.connect(self.data_dir, holder.socket, timeout_s)
        except OSError:
            return None
