"""The threads that bring held sinks back: one for each that is tried, so that none waits for another.

A try may take as long as a destination hangs, or as its park is long. Only what they share is counted: threads,
and the tasks that Spark runs at a time (`Slots`), of which one is always left to the flow itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from penstock import logs
from penstock.errors import PenstockError, Unavailable
from penstock.flow.drain import Left
from penstock.limits import MAX_DRAINS, ONCE_TRIES

log = logs.get("engine")
_LOOK_S = 0.05


class Tried(Protocol):
    """A sink's way back (`penstock.flow.drain.Drain`)."""

    @property
    def due(self) -> bool: ...

    @property
    def left(self) -> Left | None: ...

    def try_once(self, stopping: threading.Event) -> None: ...


class Drains:
    """`look` starts the tries whose time has come; `start` looks for ever, `run` once and to their end."""

    def __init__(
        self, drains: Mapping[str, Tried], stopping: threading.Event, *, most: int = MAX_DRAINS
    ) -> None:
        self._drains = drains
        self._stopping = stopping
        self._most = most
        self._at_work: dict[str, threading.Thread] = {}
        self._turns = 0
        self._last_turn: dict[str, int] = {}
        self._looking: threading.Thread | None = None

    def start(self) -> None:
        self._looking = threading.Thread(target=self._look_for_ever, name="drains", daemon=True)
        self._looking.start()

    def run(self) -> None:
        for thread in self.look():
            thread.join()

    def finish(self) -> list[Left]:
        """Until every sink has everything, or ONCE_TRIES tries in a row were in vain: what is left."""
        while not self._stopping.is_set():
            if not self._hopeful():
                self._wait_for([])
                if not self._hopeful():
                    return self._left()
            self.look()
            self._stopping.wait(_LOOK_S)
        return []

    def _left(self) -> list[Left]:
        return [one for drain in self._drains.values() if (one := drain.left) is not None]

    def _hopeful(self) -> bool:
        return any(one.tries < ONCE_TRIES for one in self._left())

    def look(self) -> list[threading.Thread]:
        """Past the most there may be, those wait that were tried last."""
        for name in [name for name, one in self._at_work.items() if not one.is_alive()]:
            del self._at_work[name]
        started = []
        for name in sorted(self._drains, key=lambda one: self._last_turn.get(one, -1)):
            if len(self._at_work) >= self._most:
                break
            if name not in self._at_work and self._drains[name].due:
                self._turns += 1
                self._last_turn[name] = self._turns
                thread = threading.Thread(
                    target=self._try, args=(name,), name=f"drain {name}", daemon=True
                )
                self._at_work[name] = thread
                thread.start()
                started.append(thread)
        return started

    def join(self, timeout_s: float) -> None:
        """After `stopping` was set. A try that hangs longer is left: what it has decided is on disk."""
        threads = [self._looking] if self._looking is not None else []
        waits = threading.Thread(target=self._wait_for, args=(threads,), daemon=True)
        waits.start()
        waits.join(timeout_s)

    def _wait_for(self, threads: list[threading.Thread]) -> None:
        for thread in threads:
            thread.join()
        for thread in list(self._at_work.values()):
            thread.join()

    def _look_for_ever(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            self.look()

    def _try(self, name: str) -> None:
        try:
            self._drains[name].try_once(self._stopping)
        except PenstockError as error:
            log.error("drain fails", sink=name, error=str(error))
        except Exception as error:
            log.exception("drain fails", error, sink=name)


class Slots:
    """How many drains may have a job at a time. Their tasks may all wait for sinks that hang."""

    def __init__(self, tasks: int, stopping: threading.Event) -> None:
        self._free = threading.BoundedSemaphore(max(1, tasks - 1))
        self._stopping = stopping

    @contextmanager
    def one(self) -> Iterator[None]:
        while not self._free.acquire(timeout=_LOOK_S):
            if self._stopping.is_set():
                raise Unavailable("stopped while other sinks were drained")
        try:
            yield
        finally:
            self._free.release()
