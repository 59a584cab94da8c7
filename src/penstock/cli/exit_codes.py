"""Exit codes, for scripts. Every command uses these and no others."""

from __future__ import annotations

from enum import IntEnum

from penstock.errors import (
    ConfigError,
    InvalidMessage,
    InvalidName,
    LogLocked,
    NoSuchTopic,
    PenstockError,
    TopicExists,
    WouldLose,
)


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    """It was tried and did not work: an unreadable file, a full disk, a corrupt topic."""
    USAGE = 2
    """The command line, a setting or the flow file is wrong; nothing was tried."""
    NOT_FOUND = 3
    """A topic, a partition or a data directory that was named does not exist."""
    REFUSED = 4
    """Somebody else is using it, it exists and differs, something would be lost, or a confirmation was not
    given."""
    INTERRUPTED = 130
    """Ctrl-C."""


class NotFound(PenstockError):
    """Something named on the command line, other than a topic, does not exist."""


class NotConfirmed(PenstockError):
    """A command that destroys something was not confirmed."""


_CODES: tuple[tuple[type[PenstockError], ExitCode], ...] = (
    (ConfigError, ExitCode.USAGE),
    (InvalidName, ExitCode.USAGE),
    (InvalidMessage, ExitCode.USAGE),
    (NoSuchTopic, ExitCode.NOT_FOUND),
    (NotFound, ExitCode.NOT_FOUND),
    (LogLocked, ExitCode.REFUSED),
    (TopicExists, ExitCode.REFUSED),
    (NotConfirmed, ExitCode.REFUSED),
    (WouldLose, ExitCode.REFUSED),
)


def exit_code(error: PenstockError) -> ExitCode:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
