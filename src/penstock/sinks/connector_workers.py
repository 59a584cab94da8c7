"""The workers of a `sink.connector`: names that last, where each one's stream stands, and who uses it now.

    DATA_DIR/connector/SINK/COORDINATOR/SLOT.LANE         what is known of a worker, JSON
    DATA_DIR/connector/SINK/COORDINATOR/SLOT.LANE.lock    held by whoever speaks in its name

A worker has one stream of bytes to the sink, in which one round follows another. So a task that writes needs
a worker for itself from its first byte to the decision. It takes the first free *lane* of its slot. That is
lane 0, unless another attempt of the same task has prepared already, or is still at it: two attempts
never share a stream, and both can be decided for themselves.

The file is written, and synced, before PHASE1 goes out and after the outcome was confirmed. So:

- a round that the sink may hold is in a file here: `uncommitted` need not ask the sink
- a transaction that a sink names and no file knows was never decided, and is rolled back
- a round that is in no file any more was settled
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from penstock.limits import MAX_CONNECTOR_LANES
from penstock.log.embedded.active import write_durably
from penstock.sinks.interface import SinkUnavailable
from penstock.sinks.staging import Staging

_LOCK: Final = ".lock"
_RETRY_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Round:
    """What a worker has asked the sink to prepare, or is about to."""

    transaction: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a worker."""

    committed: int | None = None
    """The end of its last committed round. None: only the sink can know."""

    round: Round | None = None
    generation: int = 0
    """How often a worker of this slot and lane has left for good; each has another name."""

    left: bool = False


class Worker:
    """One worker, as long as its lock is held."""

    def __init__(self, path: Path, name: str, lock: int) -> None:
        self.path = path
        self._name = name
        self._lock: int | None = lock
        self.known = read(path)
        if self.known.left:
            self.known = Known(generation=self.known.generation + 1)

    @property
    def name(self) -> str:
        """As the sink knows it."""
        return name_of(self._name, self.path, self.known)

    def write(self, known: Known) -> None:
        self.known = known
        write_durably(self.path, orjson.dumps(asdict(known)))

    def begin(self, transaction: str, start: int, end: int) -> None:
        self.write(replace(self.known, committed=start, round=Round(transaction, start, end)))

    def end(self, committed: int | None) -> None:
        """The round is settled; this is where the stream stands now."""
        self.write(replace(self.known, committed=committed, round=None))

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers that one coordinator has at one sink. Picklable."""

    data_dir: Path
    sink: str
    coordinator: str

    @property
    def _staging(self) -> Staging:
        return Staging(self.data_dir.absolute() / "connector", self.sink)

    @property
    def _prefix(self) -> str:
        return f"{self.coordinator}/{self.sink}"

    def take(self, slot: int) -> Worker:
        """The first worker of this slot that is free, for a task."""
        folder = self._staging.make(self.coordinator)
        for lane in range(MAX_CONNECTOR_LANES):
            path = folder / f"{slot}.{lane}"
            lock = _lock(path)
            if lock is None:
                continue
            worker = Worker(path, self._prefix, lock)
            if worker.known.round is None:
                return worker
            worker.release()
        raise SinkUnavailable(
            f"sink {self.sink}: {MAX_CONNECTOR_LANES} attempts of one task wait for a decision"
        )

    @contextmanager
    def hold(self, path: Path, timeout_s: float) -> Iterator[Worker]:
        """This very worker, once nobody else speaks in its name."""
        deadline = time.monotonic() + timeout_s
        while (lock := _lock(path)) is None:
            if time.monotonic() > deadline:
                raise SinkUnavailable(f"sink {self.sink}: {path.name} is still used by a task")
            time.sleep(_RETRY_S)
        worker = Worker(path, self._prefix, lock)
        try:
            yield worker
        finally:
            worker.release()

    def path(self, file: str) -> Path:
        return self._staging.make(self.coordinator) / file

    def known(self) -> list[tuple[Path, Known]]:
        """What is written down, by slot and lane."""
        folder = self._staging.folder(self.coordinator)
        if not folder.is_dir():
            return []
        paths = [path for path in folder.iterdir() if not path.suffix.strip(".").isalpha()]
        return [(path, read(path)) for path in sorted(paths, key=_place)]

    def open_rounds(self) -> list[tuple[Path, Round]]:
        return [(path, known.round) for path, known in self.known() if known.round is not None]

    def gone(self, slots: int) -> dict[Path, str]:
        """The names of free workers whose slots are no more, now that there are so many."""
        return {
            path: name_of(self._prefix, path, known)
            for path, known in self.known()
            if _place(path)[0] >= slots and known.round is None and not known.left
        }


def read(path: Path) -> Known:
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return Known()
    if found["round"] is not None:
        found["round"] = Round(**found["round"])
    return Known(**found)


def name_of(prefix: str, path: Path, known: Known) -> str:
    slot, lane = _place(path)
    more = f"+{lane}" if lane else ""
    return f"{prefix}/{slot}{more}" + (f"~{known.generation}" if known.generation else "")


def _place(path: Path) -> tuple[int, int]:
    slot, lane = path.name.split(".")
    return int(slot), int(lane)


def _lock(path: Path) -> int | None:
    fd = os.open(path.with_name(path.name + _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
