"""Dead letters: the message as it came in, replayed once, whatever is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson
import pytest

from penstock import faults
from penstock.engine.replays import Replays
from penstock.flow.deadletters import DeadLetters
from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.replayed import Resolver
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch, EventId
from penstock.sinks.interface import Txn
from penstock.status import Status
from tests.cli.commands import penstock
from tests.supervisor.running import clean_environment

WEB, DEAD = TopicName.parse("orders.web"), TopicName.parse("orders.dead")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five messages came in; 1 and 3 did not end in done."""
    log = EmbeddedLog(tmp_path)
    log.create(WEB, TopicConfig())
    log.create(DEAD, TopicConfig())
    with log.appender(WEB, 0) as appender:
        payloads = [f"order {n}".encode() for n in range(5)]
        appender.append([Batch.of("web", "till", 0, payloads, meta={"dest": "x"})])
    letters = DeadLetters(tmp_path, DEAD)
    ended = [(Position("orders.web", 0, n), receipt(n)) for n in (1, 3)]
    for _ in range(2):  # a repeat of the transaction changes nothing
        letters.append(Txn("orders.web", 7), ended)
    letters.close()
    return tmp_path


def receipt(n: int) -> Receipt:
    branches = {"a": Branch(Status.DONE), "b": Branch(Status.FAILED, "full")}
    return Receipt(Status.PARTIAL, "full", branches, EventId("web", "till", n))


def stored(data: Path) -> list[tuple[str, dict[str, str]]]:
    reader = EmbeddedLog(data).reader(WEB, 0)
    found = []
    for batch in reader.read(0):
        metas = batch.column("meta").to_pylist()
        for payload, meta in zip(batch.column("payload").to_pylist(), metas, strict=True):
            found.append((payload.decode(), dict(meta)))
    reader.close()
    return found


def deadletter(data: Path, *arguments: str) -> str:
    done = penstock("deadletter", *arguments, "--data-dir", str(data), cwd=data)
    assert done.code == 0, done.err
    return done.out


def test_they_are_listed_with_their_receipts(data: Path) -> None:
    lines = deadletter(data, "list", "orders").splitlines()
    assert lines == ["0\tpartial\tweb/till/1\tfull", "1\tpartial\tweb/till/3\tfull"]
    shown = orjson.loads(deadletter(data, "show", "orders", "1"))
    assert shown["payload"] == "order 3"
    assert shown["receipt"]["branches"] == {"a": "done", "b": "failed"}


def test_a_replay_says_how_its_branches_had_ended(data: Path) -> None:
    assert deadletter(data, "replay", "orders", "1") == "replayed 1 message\n"
    mark = '{"letter":1,"branches":{"a":"done","b":"failed"}}'
    assert stored(data)[5:] == [("order 3", {"dest": "x", "penstock.replay": mark})]
    assert deadletter(data, "list", "orders").split("\t")[0] == "0"
    assert deadletter(data, "drop", "orders", "--all", "--yes") == "dropped 1 message\n"
    assert deadletter(data, "list", "orders") == ""


@pytest.mark.parametrize("point", ["replay.intended", "replay.appended"])
def test_a_replay_that_is_killed_is_finished_by_the_next_one(data: Path, point: str) -> None:
    rules = orjson.dumps([{"point": point, "action": "kill"}]).decode()
    environment = clean_environment(**{faults.VARIABLE: rules})
    arguments = ("deadletter", "replay", "orders", "0", "--data-dir", str(data))
    assert penstock(*arguments, cwd=data, env=environment).code == -signal.SIGKILL
    deadletter(data, "replay", "orders", "1")
    assert [text for text, _ in stored(data)[5:]] == ["order 1", "order 3"]
    assert deadletter(data, "list", "orders") == ""


def place(offset: int) -> Position:
    return Position("orders.web", 0, offset)


@pytest.fixture
def store(data: Path) -> Iterator[Receipts]:
    """What the engine has written: 1 and 3 are partial, the rest of five is done."""
    receipts = Receipts(data, writable=True)
    receipts.settle({("orders.web", 0): 5}, [(place(n), receipt(n)) for n in (1, 3)])
    yield receipts
    receipts.close()


def looks(data: Path, store: Receipts) -> list[Status]:
    """The engine starts, and looks; what 1 and 3 say then."""
    resolver = Resolver(data, store)
    resolver.look()
    resolver.close()
    return [store.find("orders.web", 0, n).status for n in (1, 3)]


def test_the_receipt_of_the_original_is_that_of_its_replay(data: Path, store: Receipts) -> None:
    done, partial = Status.DONE, Status.PARTIAL
    assert looks(data, store) == [partial, partial]
    deadletter(data, "replay", "orders", "--all")
    assert looks(data, store) == [partial, partial], "nothing is settled yet"
    failed = Receipt(
        partial, "gone", {"a": Branch(done), "b": Branch(Status.FAILED, "gone")}, receipt(3).id
    )
    store.settle({("orders.web", 0): 7}, [(place(6), failed)])
    for _ in range(2):
        assert looks(data, store) == [done, partial]
    assert store.find_id(EventId("web", "till", 1)) is None
    told = [store.find("orders.web", 0, 3), store.find_id(EventId("web", "till", 3))]
    assert [one.reason for one in told if one is not None] == ["gone", "gone"]
    # Its replay is a dead letter too, and may be replayed again: that counts for all of its places.
    letters = DeadLetters(data, DEAD)
    letters.append(Txn("orders.web", 8), [(place(6), failed)])
    letters.close()
    deadletter(data, "replay", "orders", "--all")
    assert looks(data, store) == [done, partial]
    store.settle({("orders.web", 0): 8}, [])
    assert looks(data, store) == [done, done]
    assert store.counts() == {}, "what went well leaves nothing behind"


def test_a_replay_that_waits_in_a_park_has_not_ended(data: Path, store: Receipts) -> None:
    deadletter(data, "replay", "orders", "0")
    waits = np.array([5])
    store.settle({("orders.web", 0): 6}, [], [Parked.of("b", "orders.web", 0, waits)])
    assert looks(data, store)[0] is Status.PARTIAL
    store.unpark("b", {("orders.web", 0): waits})
    assert looks(data, store)[0] is Status.DONE


@pytest.mark.parametrize("point", ["replay.intended", "replay.appended"])
def test_the_engine_finishes_a_replay_that_was_killed(
    data: Path, store: Receipts, point: str
) -> None:
    rules = orjson.dumps([{"point": point, "action": "kill"}]).decode()
    environment = clean_environment(**{faults.VARIABLE: rules})
    arguments = ("deadletter", "replay", "orders", "0", "--data-dir", str(data))
    assert penstock(*arguments, cwd=data, env=environment).code == -signal.SIGKILL
    engine = Replays(data, EmbeddedLog(data), "orders.dead", store)
    engine.finish()
    assert [text for text, _ in stored(data)[5:]] == ["order 1"]
    store.settle({("orders.web", 0): 6}, [])
    faults.arm(faults.Rule("replay.resolved", action="raise", times=1))
    try:
        engine.resolve()  # which fails half-way
    finally:
        faults.arm()
        engine.close()
    assert looks(data, store) == [Status.DONE, Status.PARTIAL]
    assert store.counts() == {Status.PARTIAL: 1}


def test_wrong_words_are_explained(data: Path) -> None:
    for arguments, wanted in [
        (("replay", "orders"), "say which"),
        (("replay", "orders", "9"), "no dead letter 9"),
        (("list", "orders", "--status", "unrutable"), "unroutable"),
        (("drop", "orders", "--all"), "--yes"),
        (("list", "odrers"), "orders.dead"),
    ]:
        done = penstock("deadletter", *arguments, "--data-dir", str(data), cwd=data)
        assert done.code != 0
        assert wanted in done.err
