"""The decision log: what a coordinator has decided, on disk before anyone acts on it.

One file of lines, each a check and a JSON object:

    1f3a9c… {"decide": 12, "commit": {"a": ["…"]}, "frontiers": {"orders.web/0": 340}, …}
    93b00e… {"committed": 12, "sink": "a"}
    0c77d1… {"finished": 12}

`decide` is synced before `Decisions.decide` returns: the point of no return. The other two only save work
after a crash, since committing and recording may be repeated, so they are not. Transactions come one after
another; only the last may be unfinished. A sink that was gone when it had to commit is *owed* its commit:
the decision stands, and later transactions go on without that sink.

Recovery reads the file from its start. A torn last line was never acted on and is cut. Damage anywhere else
stops the engine: guessing at decisions could lose or double messages. Past `DECISIONS_BYTES` the file is
replaced by one line with all that still counts.
"""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from xxhash import xxh3_64_hexdigest

from penstock import faults
from penstock.errors import LogError
from penstock.flow.parked import Parked
from penstock.flow.receipts import Branch, Position, Receipt
from penstock.limits import DECISIONS_BYTES
from penstock.message import EventId
from penstock.status import Status

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
    """One coordinator's log. Used by one thread at a time, in one process."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / "decisions"
        self.last = -1
        self.frontiers: dict[tuple[str, int], int] = {}
        self.counters: dict[str, int] = {}
        self.unfinished: Decision | None = None
        self.owed: dict[str, dict[int, Sequence[bytes]]] = {}  # by target, then by number
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._size = self._replay()

    def decide(self, decision: Decision) -> None:
        assert self.unfinished is None, "one transaction at a time"
        assert decision.number > self.last, "numbers rise"
        self._append(decision.to_json())
        faults.point("decisions.written", number=decision.number)
        os.fdatasync(self._fd)
        self._learn_decision(decision)

    def committed(self, number: int, target: str) -> None:
        self._append({"committed": number, "sink": target})
        self._learn_commit(number, target)

    def finished(self, number: int) -> None:
        self._append({"finished": number})
        self.unfinished = None
        if self._size > DECISIONS_BYTES:
            self._compact()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    # --- The file -------------------------------------------------------------------------------

    def _append(self, record: Mapping[str, Any]) -> None:
        line = _line(record)
        written = 0
        try:
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._size + written)
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise LogError(f"{self.path} cannot be written: {error.strerror}") from None
        self._size += len(line)

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
                        "the file, or remove it and check the sinks for repeats by hand"
                    )
                break
            self._learn(record)
            good += len(line)
        if good != len(data):
            os.ftruncate(self._fd, good)
        return good

    def _compact(self) -> None:
        state = {
            "state": self.last,
            "frontiers": dump_frontiers(self.frontiers),
            "counters": self.counters,
            "owed": {
                target: {str(n): [b64encode(t).decode() for t in ts] for n, ts in of.items()}
                for target, of in self.owed.items()
            },
        }
        fresh = self.path.with_suffix(".new")
        fd = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        line = _line(state)
        os.write(fd, line)
        os.fsync(fd)
        os.rename(fresh, self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(folder)
        os.close(folder)
        os.close(self._fd)
        self._fd, self._size = fd, len(line)

    # --- What it means --------------------------------------------------------------------------

    def _learn(self, record: Mapping[str, Any]) -> None:
        if "decide" in record:
            self._learn_decision(Decision.from_json(record))
        elif "committed" in record:
            self._learn_commit(record["committed"], record["sink"])
        elif "finished" in record:
            self.unfinished = None
        elif "state" in record:
            self.last = record["state"]
            self.frontiers = load_frontiers(record["frontiers"])
            self.counters = dict(record["counters"])
            self.owed = {
                target: {int(n): [b64decode(t) for t in ts] for n, ts in of.items()}
                for target, of in record["owed"].items()
            }

    def _learn_decision(self, decision: Decision) -> None:
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
