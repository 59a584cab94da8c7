"""One hierarchy of errors. Each names what was wrong, where, and what to do about it.

The classes say who has to act: the sender (`InvalidMessage`, `OutOfOrder`), the writer of the flow
file (`ConfigError`), the operator (`LogFull`, `LogLocked`, `CorruptBatch`), or nobody but time
(`LogBehind`, `Unavailable`).
"""

from __future__ import annotations

from collections.abc import Sequence


class PenstockError(Exception):
    """The root of everything that Penstock raises on purpose."""


class ConfigError(PenstockError):
    """A flow file, a setting or a command line cannot be used as it is."""


class WouldLose(PenstockError):
    """The flow was edited, and carrying on with it would lose something. `losses` says what, one by one."""

    def __init__(self, message: str, losses: Sequence[str]) -> None:
        super().__init__(message)
        self.losses = list(losses)


class InvalidMessage(PenstockError):
    """The bytes that came in are not a message: wrong framing, wrong encoding, too large."""


class TooLarge(InvalidMessage):
    """A message, a frame or a body is over its limit."""


class NeedsId(InvalidMessage):
    """The topic takes its ids from its producers, and this message came without one."""


class ProtocolError(PenstockError):
    """The other side of a connector connection said what it must not, or what cannot be read."""


class LogError(PenstockError):
    """A topic could not be read or written."""


class NoSuchTopic(LogError):
    """The topic or the partition does not exist."""


class TopicExists(LogError):
    """A topic of that name exists and differs from what was asked for."""


class InvalidName(LogError):
    """A namespace or a topic has a name that is not allowed."""


class LogLocked(LogError):
    """Another process writes here; the message says which."""


class LogFull(LogError):
    """The disk takes no more. Nothing was written; try again when there is space."""


class LogBehind(LogError):
    """More is waiting for the disk than may wait. Nothing was written; try again soon."""


class LogClosed(LogError):
    """The writer has stopped. Nothing was written."""


class UnknownMessage(LogError):
    """There is no such message, or it cannot be found by its id alone."""


class OutOfOrder(LogError):
    """A numbered message came after a later one of its stream; storing it would break the order."""


class CorruptBatch(LogError):
    """Bytes on disk fail their checksum. They are named and never served."""

    def __init__(self, path: str, position: int, first: int, last: int, reason: str) -> None:
        self.path = path
        self.position = position
        self.first = first
        self.last = last
        self.reason = reason
        span = f"offset {first}" if first == last else f"offsets {first} to {last}"
        super().__init__(f"{path}, byte {position}: {reason}; {span} cannot be read")


class CorruptLog(LogError):
    """A log that decides something is damaged; to go on without what it said would be wrong."""


class OffsetsLost(LogError):
    """Messages that were to be read are gone: retention took them, or they are corrupt."""


class StateLost(PenstockError):
    """What a link remembers does not fit what has been decided. The operator must say how to go on."""


class BatchFails(PenstockError):
    """A link with state fails on what it is given, each time. The flow must be changed before it goes on."""


class NoJava(PenstockError):
    """There is no Java that Spark can run on."""


class Unavailable(PenstockError):
    """The other side (an edge process, the admin API) does not answer."""


class ReadTimeout(PenstockError, TimeoutError):
    """Nothing came in the time that the reader was ready to wait."""
