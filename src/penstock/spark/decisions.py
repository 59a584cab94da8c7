"""Which attempt of a write counts, decided once: Spark may run a micro-batch again after a crash, and its
rows may then come in another order, or (from a careless source) be others.

One file for each writer, replaced with every write:

    DATA/spark/TOPIC/WRITER.json        {"number": ..., "staged": ..., "tokens": [...]}
    DATA/spark/TOPIC/WRITER.lock

Its tokens name what tasks have staged. Once the file is on disk, these and no others are appended, however
often they have to be: the steps of `Decisions.commit` are idempotent.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import orjson

from penstock import faults
from penstock.errors import LogError
from penstock.limits import SPARK_COMMIT_WAIT_S
from penstock.log.embedded.active import sync_folder, write_durably
from penstock.log.embedded.lock import FileLock
from penstock.sinks.interface import Txn
from penstock.sinks.topic import TopicSink


@dataclass(frozen=True, slots=True)
class Decision:
    number: int  # of the append: it makes a repeat a no-op
    staged: int  # the number under which the tasks have staged
    tokens: tuple[bytes, ...]


class Decisions:
    """Of one writer (a streaming query, or all batch writes) of one topic."""

    def __init__(self, sink: TopicSink, writer: str) -> None:
        folder = sink.data_dir / "spark" / quote(sink.topic, safe="")
        self._sink = sink
        self._writer = writer
        self._path = folder / f"{quote(writer, safe='')}.json"

    def commit(self, staged: int, tokens: Sequence[bytes], *, number: int | None) -> None:
        """Append what the tokens name, once. Without a number it gets the next one.

        1. Finish what an earlier process has decided and perhaps not done.
        2. If this number was decided before, drop what was staged again; nothing else is to be done.
        3. Decide, durably.
        4. Append, and remove what was staged.
        """
        with self._locked():
            before = self._load()
            if before is not None:
                self._finish(before)
                # An older one comes back with an older copy of the checkpoint.
                if number is not None and number <= before.number:
                    self._sink.abort(Txn(self._writer, staged))
                    return
            if number is None:
                # The clock is there for the day on which the file is lost: numbers must rise. In
                # milliseconds, since the sink has room for 43 bits.
                number = max(time.time_ns() // 1_000_000, 1 + (before.number if before else 0))
            decision = Decision(number, staged, tuple(tokens))
            faults.point("spark.staged", number=number)
            self._store(decision)
            faults.point("spark.decided", number=number)
            self._finish(decision)
            faults.point("spark.appended", number=number)

    def abort(self, staged: int) -> None:
        """Remove what was staged; unless it is decided, for Spark aborts what it could not commit."""
        with self._locked():
            before = self._load()
            if before is None or before.staged != staged:
                self._sink.abort(Txn(self._writer, staged))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        _make_durably(self._path.parent)
        what = f"{self._writer} of topic {self._sink.topic}"
        lock = FileLock(self._path.with_suffix(".lock"), what=what, wait_s=SPARK_COMMIT_WAIT_S)
        try:
            yield
        finally:
            lock.release()

    def _finish(self, decision: Decision) -> None:
        # If it was done before, what the tokens name is no longer there, and this does nothing.
        self._sink.commit(Txn(self._writer, decision.number), decision.tokens)
        self._sink.abort(Txn(self._writer, decision.staged))

    def _load(self) -> Decision | None:
        try:
            stored = orjson.loads(self._path.read_bytes())
            tokens = tuple(base64.b64decode(token) for token in stored["tokens"])
            return Decision(int(stored["number"]), int(stored["staged"]), tokens)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LogError(f"{self._path} is damaged: {error}") from None

    def _store(self, decision: Decision) -> None:
        tokens = [base64.b64encode(token).decode() for token in decision.tokens]
        stored = {"number": decision.number, "staged": decision.staged, "tokens": tokens}
        write_durably(self._path, orjson.dumps(stored))


def _make_durably(folder: Path) -> None:
    if folder.is_dir():
        return
    for missing in [one for one in (*reversed(folder.parents), folder) if not one.exists()]:
        with suppress(FileExistsError):
            missing.mkdir(mode=0o700)
        sync_folder(missing.parent)
