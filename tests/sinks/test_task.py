"""The task side: rows to the sinks they are meant for, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.guarantee import Guarantee
from penstock.sinks.interface import Poisoned, Prepared, Refused, SinkRefuses, SinkUnavailable, Txn
from penstock.sinks.task import RESULTS, run_task

from .making import events, for_sinks

TXN = Txn("f", 1)


class Memory:
    """A sink that keeps what it is given, and fails on cue."""

    def __init__(
        self,
        name: str = "a",
        *,
        poison: Sequence[bytes] = (),
        names_them: bool = True,
        refuse: Sequence[bytes] = (),
        gone_after: int | None = None,
        guarantee: Guarantee = Guarantee.EXACTLY_ONCE,
        journal: list[str] | None = None,
    ) -> None:
        self.name = name
        self.guarantee = guarantee
        self.poison = poison
        self.names_them = names_them
        self.refuse = refuse
        self.gone_after = gone_after
        self.journal = [] if journal is None else journal
        self.taken: list[bytes] = []
        self.aborted = 0
        self.tasks = 0

    def task(self, txn: Txn, partition: int, attempt: int) -> MemoryTask:
        assert (txn, partition, attempt) == (TXN, 4, 2)
        self.tasks += 1
        return MemoryTask(self)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None: ...

    def abort(self, txn: Txn) -> None: ...

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return []

    def probe(self) -> None: ...

    def close(self) -> None: ...


class MemoryTask:
    def __init__(self, sink: Memory) -> None:
        self.sink = sink
        self.kept: list[pa.RecordBatch] = []
        self.writes = 0

    def write(self, batch: pa.RecordBatch) -> None:
        if self.writes == self.sink.gone_after:
            raise SinkUnavailable("nobody is there")
        payloads = batch.column("payload").to_pylist()
        bad = {at: f"no {one!r}" for at, one in enumerate(payloads) if one in self.sink.poison}
        if bad:
            raise Poisoned("some are bad", bad if self.sink.names_them else None)
        self.writes += 1
        self.kept.append(batch)

    def prepare(self) -> Prepared:
        self.sink.journal.append(self.sink.name)
        if self.writes == self.sink.gone_after:
            raise SinkUnavailable("nobody is there")
        found: list[Refused] = []
        for batch in self.kept:
            for at, payload in enumerate(batch.column("payload").to_pylist()):
                if payload in self.sink.refuse:
                    found.append(Refused(batch.slice(at, 1), ["400 Bad Request"]))
                else:
                    self.sink.taken.append(payload)
        return Prepared(b"token", tuple(found))

    def abort(self) -> None:
        self.sink.aborted += 1


def run(batches: list[pa.RecordBatch], *sinks: Memory, **more: Any) -> list[dict[str, Any]]:
    result = run_task(batches, {sink.name: sink for sink in sinks}, TXN, 4, 2, **more)
    assert result.schema == RESULTS
    found: list[dict[str, Any]] = result.to_pylist()
    assert all((row["task"], row["attempt"]) == (4, 2) for row in found)
    return found


def of_kind(rows: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == kind]


def votes(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        row["sink"]: (row["ok"], row["token"], row["rows"], row["bytes"], row["error"])
        for row in of_kind(rows, "vote")
    }


def exceptions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("sink", "offset", "status", "reason", "branch")
    return [tuple(row[name] for name in names) for row in of_kind(rows, "exception")]


def test_every_sink_gets_its_rows_in_order() -> None:
    a, b = Memory("a"), Memory("b")
    first = for_sinks(events(b"0", b"1", b"2", b"3"), ["a", "b", "a", "b"])
    second = for_sinks(events(b"4", b"5", seq=4), "b")
    rows = run([first, second], a, b)
    assert (a.taken, b.taken) == ([b"0", b"2"], [b"1", b"3", b"4", b"5"])
    assert votes(rows) == {"a": (True, b"token", 2, 2, None), "b": (True, b"token", 4, 4, None)}
    assert exceptions(rows) == []


def test_a_sink_without_rows_votes_yes_and_is_not_troubled() -> None:
    a, b = Memory("a"), Memory("b")
    rows = run([for_sinks(events(b"0"), "a"), for_sinks(events(), "b")], a, b)
    assert votes(rows)["b"] == (True, b"", 0, 0, None)
    assert b.tasks == 0
    assert votes(run([], a, b)) == {"a": (True, b"", 0, 0, None), "b": (True, b"", 0, 0, None)}


def test_rows_that_ended_on_their_way_are_exceptions_unless_they_ended_well() -> None:
    a = Memory("a")
    batch = for_sinks(
        events(b"0", b"1", b"2", b"3"),
        [None, "a", None, None],
        ["invalid", None, None, "done"],
        ["not JSON", None, None, None],
        ["decode", None, "drop", "drop"],
    )
    rows = run([batch], a)
    assert exceptions(rows) == [(None, 0, "invalid", "not JSON", "decode")]
    [exception] = of_kind(rows, "exception")
    origin = ("topic", "partition", "peer", "stream", "seq")
    assert [exception[name] for name in origin] == ["f.web", 0, "web", "s", 0]
    assert a.taken == [b"1"]


@pytest.mark.parametrize("names_them", [True, False])
def test_poison_is_found_and_the_rest_goes_through_in_order(names_them: bool) -> None:
    payloads = [b"%d" % number for number in range(100)]
    bad = [b"0", b"41", b"42", b"99"]
    a, b = Memory("a", poison=bad, names_them=names_them), Memory("b")
    batch = pa.Table.from_batches([events(*payloads), events(*payloads)]).combine_chunks()
    rows = run([for_sinks(batch.to_batches()[0], ["a"] * 100 + ["b"] * 100)], a, b)
    assert a.taken == [payload for payload in payloads if payload not in bad]
    assert b.taken == payloads
    reasons = [f"no {one!r}" if names_them else "some are bad" for one in bad]
    assert exceptions(rows) == [
        ("a", int(one), "failed", reason, "a") for one, reason in zip(bad, reasons, strict=True)
    ]
    assert votes(rows)["a"][:3] == (True, b"token", 96)


def test_what_the_destination_refused_when_it_was_sent_is_an_exception_too() -> None:
    a = Memory("a", refuse=[b"1"])
    rows = run([for_sinks(events(b"0", b"1", b"2"), "a")], a)
    assert exceptions(rows) == [("a", 1, "failed", "400 Bad Request", "a")]
    assert votes(rows)["a"] == (True, b"token", 2, 2, None)


@pytest.mark.parametrize("gone_after", [0, 1, 2])
def test_a_sink_that_is_gone_votes_no_and_the_others_do_not_notice(gone_after: int) -> None:
    a, b = Memory("a", gone_after=gone_after, poison=[b"0"]), Memory("b")
    batches = [for_sinks(events(b"0", b"1", b"2", seq=n), ["a", "a", "b"]) for n in range(2)]
    rows = run(batches, a, b)
    assert votes(rows) == {
        "a": (False, None, 0, 0, "nobody is there"),
        "b": (True, b"token", 2, 2, None),
    }
    assert exceptions(rows) == [], "the sink will be asked again for all of it"
    assert a.aborted == 1


def test_a_mistake_in_a_sink_is_a_vote_with_its_kind() -> None:
    class Broken(Memory):
        def task(self, txn: Txn, partition: int, attempt: int) -> MemoryTask:
            raise ZeroDivisionError("oops")

    b = Memory("b")
    rows = run([for_sinks(events(b"0", b"1"), ["a", "b"])], Broken("a"), b)
    assert votes(rows)["a"] == (False, None, 0, 0, "ZeroDivisionError: oops")
    assert b.taken == [b"1"]


def test_sinks_that_send_are_the_last_to_prepare() -> None:
    journal: list[str] = []
    sends = Memory("a", guarantee=Guarantee.AT_LEAST_ONCE, journal=journal)
    stages = Memory("b", journal=journal)
    run([for_sinks(events(b"0", b"1"), ["a", "b"])], sends, stages)
    assert journal == ["b", "a"]


def test_an_atomic_transaction_sends_nothing_once_a_sink_is_out() -> None:
    sends = Memory("a", guarantee=Guarantee.AT_LEAST_ONCE)
    gone = Memory("b", gone_after=0)
    rows = run([for_sinks(events(b"0", b"1"), ["a", "b"])], sends, gone, atomic=True)
    assert sends.taken == []
    assert votes(rows)["a"][0] is False
    assert votes(rows)["b"] == (False, None, 0, 0, "nobody is there")


def test_a_task_that_fails_gives_up_at_every_sink() -> None:
    a = Memory("a")

    def batches() -> Any:
        yield for_sinks(events(b"0"), "a")
        raise RuntimeError("the link failed")

    with pytest.raises(RuntimeError):
        run_task(batches(), {"a": a}, TXN, 4, 2)
    assert a.aborted == 1


def test_rows_may_have_the_types_that_spark_gives() -> None:
    a = Memory("a")
    batch = for_sinks(events(b"0", b"1", meta={"x": "1"}), "a")
    meta = pa.map_(pa.string(), pa.field("value", pa.large_string(), nullable=True))
    columns = {
        "payload": pa.large_binary(),
        "time": pa.timestamp("us", "Europe/Berlin"),
        "meta": meta,
    }
    for name, kind in columns.items():
        at = batch.schema.get_field_index(name)
        batch = batch.set_column(at, name, batch.column(name).cast(kind))
    run([batch], a)
    assert a.taken == [b"0", b"1"]


def test_a_vote_says_how_long_its_sink_kept_the_task_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("penstock.sinks.task.monotonic", lambda: now[0])

    class SlowTask(MemoryTask):
        def write(self, batch: pa.RecordBatch) -> None:
            now[0] += 1.0
            super().write(batch)

        def prepare(self) -> Prepared:
            now[0] += 0.25
            return super().prepare()

    class Slow(Memory):
        def task(self, txn: Txn, partition: int, attempt: int) -> MemoryTask:
            return SlowTask(self)

    slow, fast, idle = Slow("slow"), Memory("fast"), Memory("idle")
    batches = [for_sinks(events(b"0", b"1", seq=at), ["slow", "fast"]) for at in (0, 2)]
    rows = run(batches, slow, fast, idle)
    took = {row["sink"]: row["took_s"] for row in of_kind(rows, "vote")}
    assert took == {"slow": 2.25, "fast": 0.0, "idle": 0.0}


def test_the_numbers_of_attempts_are_long() -> None:
    """Spark counts the tasks of a driver, which may run for years."""
    [vote] = run_task([], {"a": Memory()}, TXN, 4, 1 << 40).to_pylist()
    assert vote["attempt"] == 1 << 40


def test_a_vote_against_says_whether_the_sink_was_there() -> None:
    class Stumbles(Memory):
        def __init__(self, name: str, at: str, error: Exception) -> None:
            super().__init__(name)
            self.at, self.error_of_it = at, error

        def task(self, txn: Txn, partition: int, attempt: int) -> MemoryTask:
            if self.at == "task":
                raise self.error_of_it
            return StumblingTask(self)

    class StumblingTask(MemoryTask):
        def write(self, batch: pa.RecordBatch) -> None:
            assert isinstance(self.sink, Stumbles)
            if self.sink.at == "write":
                raise self.sink.error_of_it

        def prepare(self) -> Prepared:
            assert isinstance(self.sink, Stumbles)
            raise self.sink.error_of_it

    sinks = [
        Stumbles("cannot begin", "task", KeyError("x")),
        Stumbles("stumbles", "write", KeyError("x")),
        Stumbles("gone", "write", ConnectionResetError("x")),
        Stumbles("unavailable", "prepare", SinkUnavailable("x")),
        Stumbles("refuses", "prepare", SinkRefuses("x")),
        Memory("takes it"),
    ]
    rows = run([for_sinks(events(b"0"), sink.name) for sink in sinks], *sinks)
    found = {row["sink"]: row["answered"] for row in of_kind(rows, "vote")}
    assert [name for name, answered in found.items() if answered] == ["stumbles", "refuses"]
