"""The decision log: what a coordinator has decided, on disk before anyone acts on it.

One file of lines, each a check and a JSON object:

    1f3a9c… {"decide": 12, "commit": {"a": ["…"]}, "frontiers": {"orders.web/0": 340}, …}
    93b00e… {"committed": 12, "sink": "a"}
    0c77d1… {"finished": 12}
    …       {"adopt": {"orders.tcp/0": 77}}

`decide` is synced before `Decisions.decide` returns: the point of no return. The next two only save work
after a crash, since committing and recording may be repeated, so they are not. Transactions come one after
another; only the last may be unfinished. A sink that was gone when it had to commit is *owed* its commit:
the decision stands, and later transactions go on without that sink. `adopt`, synced too, moves topics here that
another coordinator read before the flow was edited.

Recovery reads the file from its start. A torn last line was never acted on and is cut. Damage anywhere else
stops the engine: guessing at decisions could lose or double messages. Past `DECISIONS_BYTES` the file is
replaced by a few lines with all that still counts.

After a sync that failed, nobody knows what is on disk, and the system may show what is not there and never write it:
syncing once more would succeed and mean nothing. So the log is *in doubt*, and nothing may be asked of a sink
(`make_sure`) until all that counts, without what was not decided, is in a new file and synced. Killed before that,
the next process takes what it finds for the truth, which is sound, as no sink has heard otherwise; and it
begins with a new file, too.
"""

from __future__ import annotations

import os
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from xxhash import xxh3_64_hexdigest

from penstock import faults, logs
from penstock.errors import LogError
from penstock.flow.lost import Lost
from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.limits import DECISIONS_BYTES
from penstock.message import EventId
from penstock.status import Status

log = logs.get("engine")
Frontiers = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of one transaction."""

    number: int
    commit: Mapping[str, Sequence[bytes]]  # tokens by target; all else is rolled back
    frontiers: Frontiers = field(default_factory=dict)  # settled up to here, once it is finished
    begins: Frontiers = field(default_factory=dict)  # of a drain: where the park's messages begin
    exceptions: Sequence[tuple[Position, Receipt]] = ()
    parked: Sequence[Parked] = ()
    counters: Mapping[str, int] = field(default_factory=dict)  # where links that count have come to
    lost: Sequence[Lost] = ()  # below the frontiers, and could not be read

    def to_json(self) -> dict[str, Any]:
        return {
            "decide": self.number,
            "commit": {
                name: [b64encode(token).decode() for token in tokens]
                for name, tokens in self.commit.items()
            },
            "frontiers": dump_frontiers(self.frontiers),
            "begins": dump_frontiers(self.begins),
            "parked": [_dump_parked(one) for one in self.parked],
            "exceptions": [_dump_exception(*one) for one in self.exceptions],
            "counters": dict(self.counters),
            "lost": [
                [one.topic, one.partition, one.first, one.end, one.reason] for one in self.lost
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        return cls(
            data["decide"],
            {name: [b64decode(one) for one in tokens] for name, tokens in data["commit"].items()},
            load_frontiers(data["frontiers"]),
            load_frontiers(data["begins"]),
            [_load_exception(one) for one in data["exceptions"]],
            [_load_parked(one) for one in data["parked"]],
            data["counters"],
            [Lost(*one) for one in data.get("lost", ())],
        )


def dump_frontiers(frontiers: Frontiers) -> dict[str, int]:
    return {f"{topic}/{partition}": end for (topic, partition), end in frontiers.items()}


def load_frontiers(data: Mapping[str, int]) -> dict[tuple[str, int], int]:
    found = {}
    for name, end in data.items():
        topic, _, partition = name.rpartition("/")
        found[topic, int(partition)] = int(end)
    return found


class Decisions:
    """One coordinator's log, in one process. One thread decides; others may say what is committed meanwhile."""

    def __init__(self, folder: Path, *, readonly: bool = False) -> None:
        if not readonly:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / "decisions"
        self._lock = threading.RLock()
        self._readonly = readonly
        self._in_doubt = False
        self._unsynced = False
        self.last = -1
        self.frontiers: dict[tuple[str, int], int] = {}
        self.before: dict[tuple[str, int], int] = {}
        """Where the last decision began; empty if that is not known. What is below is not read again, not even
        by whoever repeats it."""
        self.counters: dict[str, int] = {}
        self.unfinished: Decision | None = None
        self.owed: dict[str, dict[int, Sequence[bytes]]] = {}  # by target, then by number
        flags = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT
        self._fd = os.open(self.path, flags | os.O_CLOEXEC, 0o600)
        self._size = self._replay()
        if self._size and not readonly:
            # What was read may be in memory only, after a sync that failed before the last restart.
            self._in_doubt = True
            self.make_sure()

    @classmethod
    def peek(cls, folder: Path) -> Decisions | None:
        """What the log says, without taking it or changing it; None if there is none."""
        try:
            found = cls(folder, readonly=True)
        except FileNotFoundError:
            return None
        found.close()
        return found

    def make_sure(self) -> None:
        """Before anything is done that follows from the log. LogError while it is in doubt."""
        with self._lock:
            if self._fd < 0:
                raise LogError(f"{self.path} is closed")
            if self._in_doubt:
                try:
                    self._replace()
                except OSError as error:
                    raise self._unwritable(error) from None

    def decide(self, decision: Decision) -> None:
        """Returns once it is on disk. Whatever it raises: it is not decided, or in doubt (`make_sure`)."""
        with self._lock:
            self.make_sure()
            assert self.unfinished is None, "one transaction at a time"
            assert decision.number > self.last, "numbers rise"
            self._append(decision.to_json())
            self._sync(number=decision.number)
            self._learn_decision(decision)

    def committed(self, number: int, target: str) -> None:
        with self._lock:
            self._append({"committed": number, "sink": target})
            self._learn_commit(number, target)

    def finished(self, number: int) -> None:
        with self._lock:
            self._append({"finished": number})
            self.unfinished = None
            if self._size > DECISIONS_BYTES:
                self._compact()

    def sync(self) -> None:
        """What is said to be finished is so after a failure of power, too: whoever goes on from there can rely on it."""
        with self._lock:
            self.make_sure()
            if self._unsynced:
                self._sync()

    def passed(self, *, drains: bool) -> Frontiers:
        """What is below is read by nobody again, whatever happens. `drains`: what is finished is not repeated."""
        with self._lock:
            if not drains or self.unfinished is not None:
                return dict(self.before)
            self.sync()
            return dict(self.frontiers)

    def owed_to(self, target: str) -> list[tuple[int, Sequence[bytes]]]:
        """What it is still to be told to commit, in order."""
        with self._lock:
            return sorted(self.owed.get(target, {}).items())

    def forgive(self, target: str) -> None:
        """Nothing is owed to it any more: somebody has accepted that it will not have it."""
        for number, _ in self.owed_to(target):
            self.committed(number, target)
        self._sync()

    def adopt(self, frontiers: Frontiers) -> None:
        """From now on these topics are read here, from where another coordinator had come to."""
        if any(self.frontiers.get(place) != end for place, end in frontiers.items()):
            self._append({"adopt": dump_frontiers(frontiers)})
            self._sync()
            self.frontiers.update(frontiers)

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    # --- The file -------------------------------------------------------------------------------

    def _append(self, record: Mapping[str, Any]) -> None:
        self.make_sure()
        line = _line(record)
        try:
            _write(self._fd, line, self._size)
        except OSError as error:
            # What was written has no end, so it says nothing; the next line overwrites it.
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise self._unwritable(error) from None
        self._size += len(line)
        self._unsynced = True

    def _sync(self, **values: Any) -> None:
        self._in_doubt = True
        try:
            faults.point("decisions.written", **values)
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._unwritable(error) from None
        self._in_doubt = self._unsynced = False

    def _unwritable(self, error: OSError) -> LogError:
        return LogError(
            f"{self.path} cannot be written: {error.strerror}; nothing is decided until it can be"
        )

    def _replay(self) -> int:
        with os.fdopen(os.dup(self._fd), "rb") as file:
            data = file.read()
        good = 0
        for number, line in enumerate(data.splitlines(keepends=True), 1):
            record = _parse(line)
            if record is None:
                if good + len(line) < len(data):
                    raise LogError(
                        f"{self.path}, line {number}: the check fails. Decisions are lost; restore "
                        "the file, or remove it and run the flow with --accept-loss"
                    )
                break
            self._learn(record)
            good += len(line)
        if good != len(data) and not self._readonly:
            os.ftruncate(self._fd, good)
        return good

    def _compact(self) -> None:
        try:
            self._replace()
        except OSError as error:  # the file is longer than it need be, and no worse
            log.warning("decision log is not compacted", path=self.path, error=error.strerror)

    def _replace(self) -> None:
        """By a new file with what counts. Until that is renamed, the one that is there stays as it is."""
        fresh = self.path.with_suffix(".new")
        data = b"".join(_line(record) for record in self._state())
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(fd, data, 0)
            faults.point("decisions.replacing", size=len(data))
            os.fsync(fd)
            self._in_doubt = True  # from here on, as to which of the two will be found
            os.rename(fresh, self.path)
        except BaseException:
            os.close(fd)
            with suppress(OSError):
                fresh.unlink()
            raise
        os.close(self._fd)
        self._fd, self._size = fd, len(data)
        _sync_folder(self.path.parent)
        self._in_doubt = self._unsynced = False

    def _state(self) -> Iterator[Mapping[str, Any]]:
        yield {
            "state": self.last,
            "frontiers": dump_frontiers(self.frontiers),
            "counters": self.counters,
            "owed": {
                target: {str(n): [b64encode(t).decode() for t in ts] for n, ts in of.items()}
                for target, of in self.owed.items()
            },
        }
        decision = self.unfinished
        if decision is not None:
            yield decision.to_json()
            for target in decision.commit:
                if decision.number not in self.owed.get(target, {}):
                    yield {"committed": decision.number, "sink": target}

    # --- What it means --------------------------------------------------------------------------

    def _learn(self, record: Mapping[str, Any]) -> None:
        if "decide" in record:
            self._learn_decision(Decision.from_json(record))
        elif "committed" in record:
            self._learn_commit(record["committed"], record["sink"])
        elif "finished" in record:
            self.unfinished = None
        elif "adopt" in record:
            self.frontiers.update(load_frontiers(record["adopt"]))
        elif "state" in record:
            self.last = record["state"]
            self.frontiers = load_frontiers(record["frontiers"])
            self.before = {}
            self.counters = dict(record["counters"])
            self.owed = {
                target: {int(n): [b64decode(t) for t in ts] for n, ts in of.items()}
                for target, of in record["owed"].items()
            }

    def _learn_decision(self, decision: Decision) -> None:
        # A file that was replaced in the middle of it knows only how far it goes.
        self.before = dict(self.frontiers) if decision.number > self.last else {}
        self.last = decision.number
        self.unfinished = decision
        self.frontiers.update(decision.frontiers)
        self.counters.update(decision.counters)
        for target, tokens in decision.commit.items():
            self.owed.setdefault(target, {})[decision.number] = tokens

    def _learn_commit(self, number: int, target: str) -> None:
        owed = self.owed.get(target, {})
        owed.pop(number, None)
        if not owed:
            self.owed.pop(target, None)


def _write(fd: int, data: bytes, at: int) -> None:
    """All of it: on a disk that is nearly full, less may be written than was asked for."""
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _line(record: Mapping[str, Any]) -> bytes:
    body = orjson.dumps(record)
    return xxh3_64_hexdigest(body).encode() + b" " + body + b"\n"


def _parse(line: bytes) -> dict[str, Any] | None:
    check, _, body = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or check != xxh3_64_hexdigest(body).encode():
        return None
    record: dict[str, Any] = orjson.loads(body)
    return record


def _dump_parked(one: Parked) -> list[Any]:
    return [one.sink, one.topic, one.partition, one.start, b64encode(one.bits).decode()]


def _load_parked(data: Sequence[Any]) -> Parked:
    sink, topic, partition, start, bits = data
    return Parked(sink, topic, partition, start, b64decode(bits))


def _dump_exception(position: Position, receipt: Receipt) -> list[Any]:
    event = receipt.id
    return [
        [position.topic, position.partition, position.offset],
        None if event is None else [event.peer, event.stream, event.seq],
        str(receipt.status),
        receipt.reason,
        {name: [str(one.status), one.reason] for name, one in receipt.branches.items()},
    ]


def _load_exception(data: Sequence[Any]) -> tuple[Position, Receipt]:
    place, event, status, reason, branches = data
    return Position(*place), Receipt(
        Status(status),
        reason,
        {name: Branch(Status(one[0]), one[1]) for name, one in branches.items()},
        None if event is None else EventId(*event),
    )
