"""Whose fault an exception is: that of what was to be done, or that of a machine, which may be better soon."""

from __future__ import annotations

import builtins

from penstock.errors import PenstockError

_OF_MACHINES = (
    "ConnectionError",
    "ImportError",
    "KeyboardInterrupt",
    "MemoryError",
    "ModuleNotFoundError",
    "OperationalError",
    "SystemExit",
    "Timeout",
    "TimeoutError",
)
"""How the names of exceptions end that a message is not to blame for, whatever library they are of."""


def is_of_machines(kind: str) -> bool:
    """By the name of its type, with its module where it has one."""
    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, OSError):
        return True
    return kind.startswith("penstock.errors.") or kind.endswith(_OF_MACHINES)


def is_of_what_it_was_given(error: Exception) -> bool:
    """Whether a sink that raises this is there, and stumbles over what it was told to write."""
    if isinstance(error, PenstockError | OSError):
        return False
    return not any(kind.__name__.endswith(_OF_MACHINES) for kind in type(error).__mro__)
