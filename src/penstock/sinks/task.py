"""The task side of a transaction: batches in, to every sink what is meant for it, votes out.

Runs inside Spark's tasks (`mapInArrow`), and knows nothing of Spark:

1. Rows that ended on their way become exceptions. The others are split by sink.
2. Each sink is given its rows. A sink that can never take an event (Poisoned) goes on without it; the
   event becomes an exception. A sink that is gone (SinkUnavailable) is out for this attempt; the others
   do not notice.
3. Every sink that is still in prepares: those that stage first, those that send last, so that as little
   as possible is sent twice.
4. One batch of `RESULTS` says what happened. It holds no data.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from time import monotonic

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.guarantee import Guarantee
from penstock.sinks.blame import is_of_what_it_was_given
from penstock.sinks.columns import as_events, size_of
from penstock.sinks.interface import (
    Poisoned,
    Prepared,
    Sink,
    SinkRefuses,
    SinkTask,
    SinkUnavailable,
    Txn,
)
from penstock.sinks.results import RESULTS, Results

COUNTER = "counter"
"""The status of rows that are no events: `reason` names a counter, `seq` is where it has come to."""

__all__ = ["COUNTER", "RESULTS", "run_task"]


def run_task(
    batches: Iterable[pa.RecordBatch],
    sinks: Mapping[str, Sink],
    txn: Txn,
    partition: int,
    attempt: int,
    *,
    atomic: bool = False,
) -> pa.RecordBatch:
    """One attempt of one task. `sinks` has every name that the column `sink` may hold.

    The batches have the columns of `EVENTS` and, as text, `sink`, `status`, `reason` and `branch`.
    `atomic`: a sink that is out makes the others vote no as well, and those that send send nothing.
    """
    results = Results(partition, attempt)
    branches = {name: _Branch(name, sink, txn, results) for name, sink in sinks.items()}
    try:
        for batch in batches:
            if batch.num_rows:
                _split(batch, branches, results)
        for branch in sorted(branches.values(), key=lambda branch: branch.sends):
            if atomic and any(other.error for other in branches.values()):
                branch.give_up(branch.error or "another sink of the transaction is out")
            branch.prepare()
    except BaseException:
        for branch in branches.values():
            branch.abandon()
        raise
    return results.batch()


def _split(batch: pa.RecordBatch, branches: Mapping[str, _Branch], results: Results) -> None:
    names = pc.dictionary_encode(batch.column("sink"))
    codes = names.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    events = as_events(batch)
    ended = codes < 0
    if ended.any():
        _end(batch.filter(pa.array(ended)), results)
    for code, name in enumerate(names.dictionary.to_pylist()):
        branches[name].write(_chosen(events, np.flatnonzero(codes == code)))


def _chosen(events: pa.RecordBatch, rows: npt.NDArray[np.intp]) -> pa.RecordBatch:
    """One row at least, in their order; neighbours are not copied."""
    first, count = int(rows[0]), len(rows)
    if int(rows[-1]) - first == count - 1:
        return events.slice(first, count)
    return events.take(pa.array(rows))


def _end(rows: pa.RecordBatch, results: Results) -> None:
    counts = pc.fill_null(pc.equal(rows.column("status"), COUNTER), False)
    if pc.any(counts).as_py():
        found = rows.filter(counts)
        names, values = found.column("reason").to_pylist(), found.column("seq").to_pylist()
        for name, value in zip(names, values, strict=True):
            results.counter(name, value)
        rows = rows.filter(pc.invert(counts))
    results.ended(rows)


class _Branch:
    """One sink's part in the attempt."""

    def __init__(self, name: str, sink: Sink, txn: Txn, results: Results) -> None:
        self._name = name  # as rows have it; the sink may be one that stands in for it
        self._sink = sink
        self._txn = txn
        self._results = results
        self._task: SinkTask | None = None
        self._rows = 0
        self._bytes = 0
        self._took_s = 0.0
        self.error: str | None = None
        self._answered = False  # where it is out

    @property
    def _parks(self) -> bool:
        return getattr(self._sink, "under_way", False)

    @property
    def sends(self) -> bool:
        """Whether what it prepares cannot be taken back."""
        return self._sink.guarantee is not Guarantee.EXACTLY_ONCE

    def write(self, events: pa.RecordBatch) -> None:
        self._results.given(self._name, events)
        if self.error is not None:
            return
        began = False
        try:
            if self._task is None:
                results = self._results
                with self._timed():
                    self._task = self._sink.task(self._txn, results.task, results.attempt)
            began = True
            self._write(self._task, events)
        except Exception as error:
            self._answered = began and _answers(error)
            self.give_up(_said(error))

    def _write(self, task: SinkTask, events: pa.RecordBatch) -> None:
        """Everything that the sink will ever take."""
        waiting = [events]
        while waiting:
            events = waiting.pop()
            try:
                with self._timed():
                    task.write(events)
            except Poisoned as poison:
                waiting += reversed(self._without(events, poison))
            else:
                if self._parks:
                    self._results.parked(self._name, events)
                self._rows += events.num_rows
                self._bytes += size_of(events.column("payload"))

    def _without(self, events: pa.RecordBatch, poison: Poisoned) -> list[pa.RecordBatch]:
        """What is still to be tried, in order: the events without the bad ones, or two halves."""
        count = events.num_rows
        if count == 1:
            self._refuse(events, [poison.rows.get(0, str(poison))])
            return []
        if not poison.rows:
            return [events.slice(0, count // 2), events.slice(count // 2)]
        bad = np.zeros(count, np.bool_)
        bad[list(poison.rows)] = True
        reasons = [reason for _, reason in sorted(poison.rows.items())]
        self._refuse(events.filter(pa.array(bad)), reasons)
        rest = events.filter(pa.array(~bad))
        return [rest] if rest.num_rows else []

    def _refuse(self, events: pa.RecordBatch, reasons: Iterable[str]) -> None:
        self._results.failed(events, list(reasons), self._name)

    def give_up(self, error: str) -> None:
        """The vote is no."""
        self.error = error
        self.abandon()

    def abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            with suppress(Exception):  # it never raises; a plugin's might
                task.abort()

    def prepare(self) -> None:
        prepared = Prepared()
        if self.error is None and self._task is not None:
            try:
                with self._timed():
                    prepared = self._task.prepare()
                self._task = None
            except Exception as error:
                self._answered = _answers(error)
                self.give_up(_said(error))
        for refused in prepared.refused:
            self._refuse(refused.events, refused.reasons)
            self._rows -= refused.events.num_rows
            self._bytes -= size_of(refused.events.column("payload"))
        self._results.vote(
            self._name,
            prepared.token,
            self._rows,
            self._bytes,
            self.error,
            self._took_s,
            answered=self._answered,
        )

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = monotonic()
        try:
            yield
        finally:
            self._took_s += monotonic() - began


def _answers(error: Exception) -> bool:
    return isinstance(error, SinkRefuses) or is_of_what_it_was_given(error)


def _said(error: Exception) -> str:
    """A destination that is gone says so itself; anything else is a mistake whose kind matters too."""
    if isinstance(error, SinkUnavailable):
        return str(error)
    return f"{type(error).__name__}: {error}"
