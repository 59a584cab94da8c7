"""The workers of a `sink.connector`: names that last, where each one's stream stands, and who uses it now.

    DATA_DIR/connector/SINK/COORDINATOR/SLOT.LANE         what is known of a worker, JSON
    DATA_DIR/connector/SINK/COORDINATOR/SLOT.LANE.lock    held by whoever speaks in its name

A worker has one stream of bytes to the sink, in which one round follows another. So a task that writes needs
a worker for itself from its first byte to the decision. It takes the first free *lane* of its slot. That is
lane 0, unless another attempt of the same task has prepared already, or is still at it: two attempts
never share a stream, and both can be decided for themselves.

A worker's name is FLOW.SOURCE.SINK.SLOT (`orders.main.out.0`), since programs name files by it and hand it to
shells: letters, digits and `_-.%+@`. What else there is in a part of it, and every `.`, is escaped as in an URL. It is
written down with the rest: the sink knows the worker's stream by it, so it stays, though versions made
names differently (`orders/main/out/0`) or will.

The file is written, and synced, before the first data of a new worker go out, before PHASE1, and after the outcome
was confirmed. So:

- a round that the sink may hold is in a file here: `uncommitted` need not ask the sink
- a transaction that a sink names and no file knows was never decided, and is rolled back
- a round that is in no file any more was settled
- what a sink says of where it stands is believed once, before anything was sent: some count what never came to a vote
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import quote

import orjson

from penstock.limits import MAX_CONNECTOR_LANES, MAX_CONNECTOR_NAME_CHARS
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

    name: str
    """As the sink knows it."""

    committed: int | None = None
    """The end of its last committed round. None: only the sink can know."""

    round: Round | None = None
    generation: int = 0
    """How often a worker of this slot and lane has left for good; each has another name."""

    left: bool = False


class Worker:
    """One worker, as long as its lock is held."""

    def __init__(self, path: Path, known: Known, lock: BinaryIO) -> None:
        self.path = path
        self.known = known
        self._lock = lock

    @property
    def name(self) -> str:
        return self.known.name

    def write(self, known: Known) -> None:
        self.known = known
        write_durably(self.path, orjson.dumps(asdict(known)))

    def begin(self, transaction: str, start: int, end: int) -> None:
        self.write(replace(self.known, committed=start, round=Round(transaction, start, end)))

    def end(self, committed: int | None) -> None:
        """The round is settled; this is where the stream stands now."""
        self.write(replace(self.known, committed=committed, round=None))

    def release(self) -> None:
        self._lock.close()


@dataclass(frozen=True, slots=True)
class Workers:
    """All workers that one coordinator has at one sink. Picklable."""

    data_dir: Path
    sink: str
    coordinator: str

    @property
    def _staging(self) -> Staging:
        return Staging(self.data_dir.absolute() / "connector", self.sink)

    def _worker(self, path: Path, lock: BinaryIO) -> Worker:
        known = self.read(path)
        if known.left:
            generation = known.generation + 1
            known = Known(self._name(path, generation), generation=generation)
        return Worker(path, known, lock)

    def _name(self, path: Path, generation: int = 0) -> str:
        slot, lane = _place(path)
        found = ".".join(map(_escaped, (*self.coordinator.split("/"), self.sink, str(slot))))
        if len(found) > MAX_CONNECTOR_NAME_CHARS:
            digest = hashlib.sha256(found.encode()).hexdigest()[:16]
            found = f"{found[:MAX_CONNECTOR_NAME_CHARS]}.{digest}.{slot}"
        return found + (f"+{lane}" if lane else "") + (f"@{generation}" if generation else "")

    def _first_name(self, path: Path, generation: int) -> str:
        """Of workers that were written down without their names."""
        slot, lane = _place(path)
        found = f"{self.coordinator}/{self.sink}/{slot}" + (f"+{lane}" if lane else "")
        return found + (f"~{generation}" if generation else "")

    def read(self, path: Path) -> Known:
        try:
            found = orjson.loads(path.read_bytes())
        except FileNotFoundError:
            return Known(self._name(path))
        if found["round"] is not None:
            found["round"] = Round(**found["round"])
        if "name" not in found:
            found["name"] = self._first_name(path, found["generation"])
        return Known(**found)

    def take(self, slot: int) -> Worker:
        """The first worker of this slot that is free, for a task."""
        folder = self._staging.make(self.coordinator)
        for lane in range(MAX_CONNECTOR_LANES):
            path = folder / f"{slot}.{lane}"
            lock = _lock(path)
            if lock is None:
                continue
            worker = self._worker(path, lock)
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
        worker = self._worker(path, lock)
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
        return [(path, self.read(path)) for path in sorted(paths, key=_place)]

    def open_rounds(self) -> list[tuple[Path, Round]]:
        return [(path, known.round) for path, known in self.known() if known.round is not None]

    def gone(self, slots: int) -> dict[Path, str]:
        """The names of free workers whose slots are no more, now that there are so many."""
        return {
            path: known.name
            for path, known in self.known()
            if _place(path)[0] >= slots and known.round is None and not known.left
        }


def _escaped(part: str) -> str:
    """So that names of different parts are never the same, joined by dots."""
    return quote(part, safe="").replace(".", "%2E").replace("~", "%7E")


def _place(path: Path) -> tuple[int, int]:
    slot, lane = path.name.split(".")
    return int(slot), int(lane)


def _lock(path: Path) -> BinaryIO | None:
    """Held until it is closed."""
    file = open(path.with_name(path.name + _LOCK), "ab", buffering=0, opener=_private)  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
