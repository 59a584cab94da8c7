"""Dead letters, taken up again: replayed through the flow, or dropped.

A replay puts the message back at the end of the topic it came from, with its id. Its meta says how its branches
had ended (`sinks/replayed.py`): those that have it do not get it again.

What has been taken up is noted in a small database, step by step, so that a replay that is killed half-way is
finished by the next one, or when the engine starts: (1) the intent, with a number; (2) the append, idempotent by that
number; (3) done, and where the messages are now, for their receipts (`flow/replayed.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from penstock import faults
from penstock.errors import PenstockError
from penstock.flow.appending import append_in_parts
from penstock.flow.deadletters import OURS, ROWS
from penstock.flow.receipt import Position
from penstock.flow.replayed import note, open_database
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.sinks.replayed import REPLAY, letter_of, replay_mark

_READ_ROWS = 10_000
_APPEND_S = 30.0


@dataclass(frozen=True, slots=True)
class DeadLetter:
    offset: int  # in the dead-letter topic
    status: str
    reason: str
    at: Position | None  # where the original is
    branches: dict[str, str]
    row: pa.RecordBatch  # of one message

    @property
    def id(self) -> str:
        names = ("peer", "stream", "seq")
        return "/".join(str(self.row.column(name)[0].as_py()) for name in names)


class DeadLetterBox:
    """The dead letters of one flow that nobody has taken up yet."""

    def __init__(self, data_dir: Path, log: EmbeddedLog, topic: TopicName) -> None:
        self._log = log
        self.topic = topic
        self._db = open_database(data_dir)

    def letters(self) -> Iterator[DeadLetter]:
        """Oldest first."""
        rows = self._db.execute("SELECT position FROM handled WHERE topic = ?", (str(self.topic),))
        handled = {position for (position,) in rows}
        reader = self._log.reader(self.topic, 0)
        try:
            for batch in reader.read(reader.begin()):
                for index, offset in enumerate(batch.column("offset").to_pylist()):
                    if offset not in handled:
                        yield _letter(offset, batch.slice(index, 1))
        finally:
            reader.close()

    def find(self, offset: int) -> DeadLetter:
        for letter in self.letters():
            if letter.offset == offset:
                return letter
        raise PenstockError(
            f"there is no dead letter {offset} in {self.topic}, or it was taken up already"
        )

    def drop(self, letters: Sequence[DeadLetter]) -> int:
        self._note(letters, "dropped", None)
        return len(letters)

    def replay(self, letters: Sequence[DeadLetter]) -> int:
        """Put them back, a batch at a time. Says how many."""
        for letter in letters:
            _origin(letter)
        self.finish()
        for start in range(0, len(letters), _READ_ROWS):
            some = letters[start : start + _READ_ROWS]
            with self._db:
                run = self._db.execute("INSERT INTO runs (done) VALUES (0)").lastrowid
                assert run is not None
                self._note(some, "replayed", run)
            faults.point("replay.intended")
            self._append(run, some)
        return len(letters)

    def close(self) -> None:
        self._db.close()

    def _note(self, letters: Sequence[DeadLetter], how: str, run: int | None) -> None:
        rows = [(str(self.topic), letter.offset, how, run) for letter in letters]
        with self._db:
            self._db.executemany("INSERT OR IGNORE INTO handled VALUES (?, ?, ?, ?)", rows)

    def finish(self) -> None:
        """Replays that were killed between their intent and their end."""
        unfinished = self._db.execute("SELECT number FROM runs WHERE done = 0").fetchall()
        for (run,) in unfinished:
            rows = self._db.execute(
                "SELECT position FROM handled WHERE topic = ? AND run = ? ORDER BY position",
                (str(self.topic), run),
            ).fetchall()
            wanted = {position for (position,) in rows}
            if wanted:
                self._append(run, [one for one in self._read_all() if one.offset in wanted])

    def _read_all(self) -> Iterator[DeadLetter]:
        reader = self._log.reader(self.topic, 0)
        try:
            for batch in reader.read(reader.begin()):
                for index, offset in enumerate(batch.column("offset").to_pylist()):
                    yield _letter(offset, batch.slice(index, 1))
        finally:
            reader.close()

    def _append(self, run: int, letters: Sequence[DeadLetter]) -> None:
        places: dict[tuple[str, int], list[DeadLetter]] = {}
        # In the order in which `finish` finds them: a repeat must make the same parts.
        for letter in sorted(letters, key=lambda letter: letter.offset):
            at = _origin(letter)
            places.setdefault((at.topic, at.partition), []).append(letter)
        moved: list[tuple[Position, Position]] = []
        for (topic, partition), some in places.items():
            rows = (_row(letter) for letter in some)
            appender = self._log.appender(TopicName.parse(topic), partition, timeout_s=_APPEND_S)
            try:
                stored = append_in_parts(appender, rows, f"replay/{self.topic}", run)
            finally:
                appender.close()
            assert stored is not None
            if stored.offset >= 0:  # otherwise a later one was stored, and this one noted before it
                first = Position(topic, partition, stored.offset)
                moved += self._moved(first, {letter.offset: letter for letter in some})
        faults.point("replay.appended")
        with self._db:
            note(self._db, moved)
            self._db.execute("UPDATE runs SET done = 1 WHERE number = ?", (run,))

    def _moved(
        self, first: Position, letters: dict[int, DeadLetter]
    ) -> Iterator[tuple[Position, Position]]:
        """Where the letters' messages were, and where they are now: from `first` on, perhaps with others
        between them."""
        left = dict(letters)
        reader = self._log.reader(TopicName.parse(first.topic), first.partition)
        try:
            for batch in reader.read(first.offset):
                marks = pc.map_lookup(batch.column("meta"), REPLAY, "last").to_pylist()
                for offset, mark in zip(batch.column("offset").to_pylist(), marks, strict=True):
                    letter = None if mark is None else left.pop(letter_of(mark), None)
                    if letter is not None:
                        yield _origin(letter), Position(first.topic, first.partition, offset)
                if not left:
                    return
        finally:
            reader.close()


def _origin(letter: DeadLetter) -> Position:
    if letter.at is None:
        raise PenstockError(
            f"dead letter {letter.offset} does not say where it came from; drop it, or "
            "send it again by hand"
        )
    return letter.at


def _letter(offset: int, row: pa.RecordBatch) -> DeadLetter:
    meta = dict(row.column("meta")[0].as_py())
    try:
        at = Position.parse(meta.get(f"{OURS}at", ""))
        branches = dict(orjson.loads(meta.get(f"{OURS}branches", "{}")))
    except ValueError:
        at, branches = None, {}
    status, reason = meta.get(f"{OURS}status", ""), meta.get(f"{OURS}reason", "")
    return DeadLetter(offset, status, reason, at, branches, row)


def _row(letter: DeadLetter) -> pa.RecordBatch:
    """The message as it was, for those branches that do not have it."""
    meta = [
        (name, value)
        for name, value in letter.row.column("meta")[0].as_py()
        if not name.startswith(OURS)
    ]
    meta.append((REPLAY, replay_mark(letter.offset, letter.branches)))
    columns = [
        pa.array([meta], field.type) if field.name == "meta" else letter.row.column(field.name)
        for field in ROWS
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ROWS)
