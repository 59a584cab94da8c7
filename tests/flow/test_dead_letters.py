"""Dead letters: the message as it came in, replayed once, whatever is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.deadletters import DeadLetters
from penstock.flow.receipts import Branch, Position, Receipt
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


def test_a_replay_is_for_the_sinks_that_do_not_have_it(data: Path) -> None:
    assert deadletter(data, "replay", "orders", "1") == "replayed 1 message\n"
    assert stored(data)[5:] == [("order 3", {"dest": "x", "penstock.only": "b"})]
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
