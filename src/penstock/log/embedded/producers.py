"""What a partition remembers of those who number their messages, so that repeats are no-ops.

Per numbered stream: the highest sequence number, and *runs*: stretches of sequence numbers that were
stored one after another, with the offset of the first, so that a repeat gets the offset it had. Per
`Idempotency-Key`: a digest and the offset. Per producer of rows: its last number (`row_numbers.py`).
Nothing is remembered of streams that the edge made up.

With producer-assigned ids (`ids: producer`) there is one order of ids for the whole topic, whatever the stream's name.
A message without an id of its producer's, on a stream that the edge made up or under an `Idempotency-Key`, is refused: its
number says nothing of what the topic has, and it would pass for a repeat.

All of it can be derived from the segments, but for what retention took. So that recovery need not read them,
and numbers outlive them, sealing a segment writes all of it to a sidecar (`sidecar.py`). If the newest is missing
or damaged, the one before it and a walk over the segments behind that take its place.

The memory is bounded (limits.py). Forgetting is never silent where it would lose a message: a number below
the highest that was never stored is refused as OutOfOrder, as long as the runs are complete; once old
runs have been dropped, a number older than all of them counts as a repeat whose offset is unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from hashlib import blake2b
from itertools import islice
from typing import Any

from penstock.errors import LogBehind, NeedsId, OutOfOrder
from penstock.limits import (
    MAX_IDEMPOTENCY_KEYS,
    MAX_NUMBERED_STREAMS,
    MAX_STREAM_RUNS,
    STREAM_EXPIRY_S,
    STREAM_RUNS,
)
from penstock.log.embedded.arrow import arrow_runs, read_provenance
from penstock.log.embedded.frame import LEAN, Header
from penstock.log.embedded.lean import Run, lean_runs
from penstock.log.embedded.row_numbers import RowNumbers
from penstock.log.embedded.sidecar import DIGEST_BYTES, Sidecar, encode_sidecar
from penstock.log.interface import Appended
from penstock.message import CONNECTION_STREAM, KEY_STREAM, Batch

NEEDS_ID = (
    "this topic takes its ids from its producers (`ids: producer`): nothing was stored; number the messages "
    "(over HTTP with Penstock-Stream and Penstock-Sequence)"
)


class _Stream:
    """Runs are [first number, last number, offset of the first], rising in all three."""

    __slots__ = ("complete", "last", "runs", "used_us")

    def __init__(self, last: int, used_us: int) -> None:
        self.last = last
        self.used_us = used_us
        self.runs: list[list[int]] = []
        self.complete = True  # no run was ever dropped

    def offset_of(self, seq: int) -> int | None:
        """Where `seq` is; -1 if it is too old to be known; None if it was never stored."""
        at = bisect_right(self.runs, seq, key=lambda run: run[0]) - 1
        if at < 0:
            return None if self.complete else -1
        first, last, offset = self.runs[at]
        return offset + seq - first if seq <= last else None

    def add(self, seq: int, count: int, offset: int) -> int:
        """Note messages that were stored; says by how many the runs grew."""
        self.last = max(self.last, seq + count - 1)
        if self.runs:
            run = self.runs[-1]
            if run[1] + 1 == seq and run[2] + run[1] - run[0] + 1 == offset:
                run[1] += count
                return 0
        self.runs.append([seq, seq + count - 1, offset])
        return 1

    def trim(self, keep: int) -> int:
        dropped = max(0, len(self.runs) - keep)
        if dropped:
            del self.runs[:dropped]
            self.complete = False
        return dropped


def key_digest(peer: str, stream: str) -> bytes:
    return blake2b(f"{peer}/{stream}".encode(), digest_size=DIGEST_BYTES).digest()


class Producers:
    """The memory of one partition. `admit` stages; `commit` or `rollback` settles what was staged."""

    def __init__(self, *, producer_ids: bool) -> None:
        self._producer_ids = producer_ids
        self._streams: OrderedDict[tuple[str, str], _Stream] = OrderedDict()
        self._keys: dict[bytes, int] = {}
        self._runs = 0
        self._undo: list[Callable[[], None]] = []
        self.rows = RowNumbers()

    def admit(self, batch: Batch, offset: int) -> tuple[Batch | None, Appended]:
        """What of the batch is new (None: nothing), and where it is or will be.

        Raises OutOfOrder for a number that can no longer be stored in order, LogBehind when no more
        streams can be remembered, and NeedsId for a message that lacks the id which the topic goes by.
        """
        if self._producer_ids:
            if batch.stream.startswith((CONNECTION_STREAM, KEY_STREAM)):
                raise NeedsId(NEEDS_ID)
            return self._admit_numbered(batch, offset, ("", ""))
        if batch.stream.startswith(CONNECTION_STREAM):
            return batch, Appended(offset, batch.count)
        if batch.stream.startswith(KEY_STREAM):
            return self._admit_key(batch, offset)
        return self._admit_numbered(batch, offset, (batch.peer, batch.stream))

    def _admit_key(self, batch: Batch, offset: int) -> tuple[Batch | None, Appended]:
        digest = key_digest(batch.peer, batch.stream)
        first = self._keys.get(digest)
        if first is not None:
            return None, Appended(first, batch.count, batch.count)
        self._keys[digest] = offset
        self._undo.append(lambda: self._keys.__delitem__(digest))
        return batch, Appended(offset, batch.count)

    def _admit_numbered(
        self, batch: Batch, offset: int, name: tuple[str, str]
    ) -> tuple[Batch | None, Appended]:
        stream = self._streams.get(name)
        if stream is None:
            self._make_room(batch.time_us)
            stream = _Stream(batch.seq - 1, batch.time_us)
            self._streams[name] = stream
            self._undo.append(lambda: self._streams.__delitem__(name))
        else:
            self._streams.move_to_end(name)
        repeats = min(max(0, stream.last - batch.seq + 1), batch.count)
        where = offset
        if repeats:
            found = stream.offset_of(batch.seq)
            ending = stream.offset_of(batch.seq + repeats - 1)
            if (found is None or ending is None) and not self._producer_ids:
                raise OutOfOrder(
                    f"stream {batch.stream!r}: number {batch.seq} comes after {stream.last}, and was "
                    "never stored; number messages in the order they are sent"
                )
            where = -1 if found is None else found
            if repeats == batch.count:
                return None, Appended(where, batch.count, repeats)
            batch = batch.tail(repeats)
        self._stage(stream, batch, offset)
        return batch, Appended(where, batch.count + repeats, repeats)

    def _stage(self, stream: _Stream, batch: Batch, offset: int) -> None:
        last, used_us, runs = stream.last, stream.used_us, len(stream.runs)
        tip = stream.runs[-1][1] if stream.runs else 0

        def undo() -> None:
            stream.last, stream.used_us = last, used_us
            self._runs -= len(stream.runs) - runs
            del stream.runs[runs:]
            if stream.runs:
                stream.runs[-1][1] = tip

        self._undo.append(undo)
        stream.used_us = max(used_us, batch.time_us)
        self._runs += stream.add(batch.seq, batch.count, offset)

    def offset_of(self, peer: str, stream: str, seq: int) -> int | None:
        """Where a message of a sender that numbers or names them is; None if that is not known."""
        if stream.startswith(KEY_STREAM):
            return self._keys.get(key_digest(peer, stream)) if seq == 0 else None
        found = self._streams.get((peer, stream))
        offset = None if found is None else found.offset_of(seq)
        return None if offset == -1 else offset

    def _make_room(self, now_us: int) -> None:
        if len(self._streams) < MAX_NUMBERED_STREAMS:
            return
        name, oldest = next(iter(self._streams.items()))
        if now_us - oldest.used_us < STREAM_EXPIRY_S * 1e6:
            raise LogBehind(
                f"{MAX_NUMBERED_STREAMS} numbered streams are in use; one that is silent for "
                f"{STREAM_EXPIRY_S / 86_400:.0f} days makes room"
            )
        self._runs -= len(oldest.runs)
        del self._streams[name]

    def commit(self) -> None:
        self.rows.commit()
        if not self._undo:
            return
        self._undo.clear()
        self._trim()

    def rollback(self) -> None:
        self.rows.rollback()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _trim(self) -> None:
        excess = len(self._keys) - MAX_IDEMPOTENCY_KEYS
        if excess > 0:
            for digest in list(islice(self._keys, excess)):
                del self._keys[digest]
        newest = next(reversed(self._streams.values()), None)
        if newest is not None and len(newest.runs) > 2 * STREAM_RUNS:
            self._runs -= newest.trim(STREAM_RUNS)
        if self._runs > MAX_STREAM_RUNS:
            for stream in self._streams.values():
                self._runs -= stream.trim(max(1, len(stream.runs) // 2))

    def learn(self, body: memoryview, header: Header) -> None:
        """From a frame that has passed its check; frames come oldest first."""
        if header.codec == LEAN:
            runs = lean_runs(body, header.offset)
        else:
            provenance = read_provenance(body)
            self.rows.learn(provenance.numbers, header.append_us)
            runs = arrow_runs(body, header, provenance)
        for run in runs:
            self._replay(run, header.append_us)

    def _replay(self, run: Run, append_us: int) -> None:
        if self._producer_ids:
            name = ("", "")
        elif run.stream.startswith(CONNECTION_STREAM):
            return
        elif run.stream.startswith(KEY_STREAM):
            self._keys[key_digest(run.peer, run.stream)] = run.offset
            return
        else:
            name = (run.peer, run.stream)
        stream = self._streams.get(name)
        if stream is None:
            stream = self._streams[name] = _Stream(run.seq - 1, append_us)
        stream.used_us = max(stream.used_us, append_us)
        self._runs += stream.add(run.seq, run.count, run.offset)
        self._streams.move_to_end(name)
        self._trim()

    def sidecar(self, seed: int) -> bytes:
        """All of it, for the disk. While nothing is staged, on any thread: nothing is changed by it."""
        streams: list[list[Any]] = [
            [peer, name, stream.last, stream.used_us, stream.complete, stream.runs]
            for (peer, name), stream in self._streams.items()
        ]
        return encode_sidecar(streams, self.rows.to_json(), self._keys, seed)

    def load(self, sidecar: Sidecar) -> None:
        """Learn from a sidecar, oldest first."""
        self.rows.load(sidecar.rows)
        for peer, name, last, used_us, complete, runs in sidecar.streams:
            stream = self._streams.setdefault((peer, name), _Stream(last, used_us))
            stream.last, stream.used_us = max(stream.last, last), max(stream.used_us, used_us)
            stream.complete = stream.complete and complete
            for first, final, offset in runs:
                self._runs += stream.add(first, final - first + 1, offset)
        self._keys.update(sidecar.keys)
        self._trim()

    def forget_runs_before(self, begin: int) -> None:
        """After recovery: with segments gone to retention, nobody can say what was never stored."""
        if begin > 0:
            for stream in self._streams.values():
                stream.complete = False
