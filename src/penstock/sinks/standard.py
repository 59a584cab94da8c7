"""Where `sink.dumper` prints: STDOUT and STDERR of `penstock run`, not those of the engine's process.

What the engine's libraries print must not get among a flow's output: the engine's own stdout is the supervisor's
stderr, and the supervisor's stdout comes by another descriptor. Its first line says that the flow is ready, so
nothing is printed before that (`announce`): until then a sink that prints is as one that is not there. On the screen
of a terminal there is no room for it: it goes among the log lines then.
"""

from __future__ import annotations

import threading

_descriptors = {"STDOUT": 1, "STDERR": 2}
_announced = threading.Event()
_announced.set()


def redirect(stdout: int | None, *, announced: bool) -> None:
    """In a process that the supervisor has started; `stdout` is None where a screen is shown."""
    if stdout is not None:
        _descriptors["STDOUT"] = stdout
        if not announced:
            _announced.clear()


def announce() -> None:
    """The flow is ready, and whoever reads stdout knows."""
    _announced.set()


def descriptor(stream: str) -> int:
    return _descriptors[stream]


def may_print(stream: str) -> bool:
    return stream != "STDOUT" or _announced.is_set()


def wait_until_announced(stream: str) -> None:
    if stream == "STDOUT":
        _announced.wait()
