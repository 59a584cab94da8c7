"""`GET /receipts/ID`: what became of a message, asked for later."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from penstock.errors import UnknownMessage
from penstock.flow import finding
from penstock.flow.finding import Finder
from penstock.flow.receipt import Receipt
from penstock.flow.receipts import Receipts
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch, EventId, connection_stream, home_partition
from penstock.status import Status
from tests.edge.conftest import Edge, ended
from tests.edge.http_client import Reply, ask, post
from tests.edge.test_waiting import Engine

Start = Callable[..., Edge]


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Edge, Engine]]:
    folder = tmp_path_factory.mktemp("receipts")
    edge = Edge(folder, "receiver.http", {"bind": "127.0.0.1:0", "path": "/in"}, engine=True)
    yield edge, Engine(edge)
    ended(edge)


@pytest.fixture
def web(_shared: tuple[Edge, Engine]) -> Edge:
    _shared[0].begin_anew()
    return _shared[0]


@pytest.fixture
def engine(_shared: tuple[Edge, Engine]) -> Engine:
    return _shared[1]


@pytest.fixture
def client(web: Edge) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*web.host_port, timeout=30)


def send(client: http.client.HTTPConnection, **headers: str) -> Reply:
    reply = ask(client, "POST", "/in", b"x", **headers)
    assert reply.code == 202
    return reply


def test_a_message_is_new_and_then_it_has_a_receipt(
    web: Edge, engine: Engine, client: http.client.HTTPConnection
) -> None:
    good, bad = send(client), send(client)
    for reply in (good, bad):
        found = ask(client, "GET", reply.headers["location"])
        assert (found.code, found.body) == (200, {"id": reply.body["id"], "status": "new"})
    engine.settle(2, None, Receipt(Status.FAILED, "the sink said no"))
    for at in (0, 1):  # with the place, and without it
        locations = [reply.headers["location"].split("?at=") for reply in (good, bad)]
        paths = ["?at=".join(parts) if at == 0 else parts[0] for parts in locations]
        done, failed = (ask(client, "GET", path) for path in paths)
        assert (done.code, done.body["status"]) == (200, "done")
        assert (failed.code, failed.body["status"]) == (200, "failed")
        assert failed.body["reason"] == "the sink said no"
        assert failed.body["id"] == bad.body["id"]


def test_messages_with_a_name_are_found_by_it(
    web: Edge, engine: Engine, client: http.client.HTTPConnection
) -> None:
    keyed = send(client, Idempotency_Key="a/b c?é")
    numbered = send(client, Penstock_Stream="till 7", Penstock_Sequence="3")
    engine.settle(2)
    for reply in (keyed, numbered):
        path = reply.headers["location"].partition("?")[0]
        found = ask(client, "GET", path)
        assert (found.code, found.body) == (200, {"id": reply.body["id"], "status": "done"})
    assert ask(client, "GET", "/receipts/in/till%207/4").code == 404
    assert ask(client, "GET", "/receipts/in/key%3Aother/0").code == 404


def test_names_are_known_after_a_restart(edge: Start) -> None:
    web = edge("receiver.http", engine=True)
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"x", Idempotency_Key="k")[0] == 202
    web.kill()
    web.start()
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert ask(client, "GET", "/receipts/in/key:k/0").body["status"] == "new"


@pytest.mark.parametrize(
    ("path", "code", "reason"),
    [
        ("/receipts/in/~0000000000000000000a/0", 404, "there is no message"),
        ("/receipts/in/till/0?at=0:0", 404, "there is no message in/till/0 at 0:0"),
        ("/receipts/in/till/0?at=7:0", 404, "partition"),
        ("/receipts/in/till/0?at=0:999999999999999999", 404, "no message"),
        ("/receipts/in/till/0?at=x", 400, "PARTITION:OFFSET"),
        ("/receipts/other/till/0", 404, "this receiver is in"),
        ("/receipts/", 404, "/receipts/RECEIVER/STREAM/SEQUENCE"),
        ("/receipts/in", 404, "/receipts/RECEIVER/STREAM/SEQUENCE"),
        ("/receipts/in/till/x", 404, "/receipts/RECEIVER/STREAM/SEQUENCE"),
        ("/receipts/in/%ff/0", 404, "/receipts/RECEIVER/STREAM/SEQUENCE"),
        ("/receipt", 404, "posted to /in"),
    ],
)
def test_what_is_not_there_is_said_not_to_be(
    client: http.client.HTTPConnection, path: str, code: int, reason: str
) -> None:
    send(client)
    found = ask(client, "GET", path)
    assert found.code == code
    assert reason in found.body["reason"]


def test_methods_are_those_of_the_place(client: http.client.HTTPConnection) -> None:
    location = send(client).headers["location"]
    assert ask(client, "HEAD", location).code == 200
    wrong = ask(client, "POST", location, b"x")
    assert (wrong.code, wrong.headers["allow"]) == (405, "GET, HEAD")
    wrong = ask(client, "GET", "/in")
    assert (wrong.code, wrong.headers["allow"]) == (405, "POST")


def test_receipts_are_for_who_may_send(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "tokens": ["t"]})
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    location = ask(client, "POST", "/", b"x", Authorization="Bearer t").headers["location"]
    assert ask(client, "GET", location).code == 401
    assert ask(client, "GET", location, Authorization="Bearer t").code == 200


# --- Searching ---------------------------------------------------------------------------------


@pytest.fixture
def topic(tmp_path_factory: pytest.TempPathFactory) -> tuple[EmbeddedLog, TopicName]:
    log, name = EmbeddedLog(tmp_path_factory.mktemp("log")), TopicName.parse("t")
    log.create(name, TopicConfig(partitions=2))
    return log, name


def test_a_connection_s_message_is_searched_for_from_its_beginning_on(
    topic: tuple[EmbeddedLog, TopicName],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log, name = topic
    now_us = time.time_ns() // 1000
    stream = connection_stream()
    writer = log.writer(name, 1)
    old = [b"old"] * 500
    writer.append([Batch.of("web", "~" + "0" * 20, 0, old, time_us=now_us - 3_600_000_000)])
    for number in range(3):
        writer.append([Batch.of("web", connection_stream(), 0, [b"other"] * 10, time_us=now_us)])
        writer.append([Batch.of("web", stream, number * 5, [b"own"] * 5, time_us=now_us)])
    writer.close()
    finder = Finder(log, Receipts(tmp_path_factory.mktemp("none")))
    # Fewer than there are old ones: without the time in its name it would not be found.
    monkeypatch.setattr(finding, "MAX_SEARCHED_ROWS", 45)
    for seq in (0, 7, 14):
        event = EventId("web", stream, seq)
        assert finder.receipt(name, event) == Receipt(Status.NEW, id=event)
    for event in (EventId("web", stream, 15), EventId("other", stream, 0)):
        with pytest.raises(UnknownMessage):
            finder.receipt(name, event)
    monkeypatch.setattr(finding, "MAX_SEARCHED_ROWS", 20)
    with pytest.raises(UnknownMessage, match="too many came after it"):
        finder.receipt(name, EventId("web", stream, 14))
    at = (1, 500 + 3 * 15 - 1)
    assert finder.receipt(name, EventId("web", stream, 14), at).status is Status.NEW


def test_a_numbered_message_is_searched_for_among_the_newest(
    topic: tuple[EmbeddedLog, TopicName], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log, name = topic
    writer = log.writer(name, home_partition("web", "till", 2))
    writer.append([Batch.of("web", "till", 10, [b"a", b"b"])])
    writer.close()
    finder = Finder(log, Receipts(tmp_path_factory.mktemp("none")))
    assert finder.receipt(name, EventId("web", "till", 11)).status is Status.NEW
    with pytest.raises(UnknownMessage):
        finder.receipt(name, EventId("web", "till", 12))


def test_replays_among_the_newest_hide_nothing(
    topic: tuple[EmbeddedLog, TopicName], tmp_path_factory: pytest.TempPathFactory
) -> None:
    log, name = topic
    partition = home_partition("web", "till", 2)
    writer = log.writer(name, partition)
    writer.append([Batch.of("web", "till", 0, [b"x"] * 60)])
    writer.close()
    reader = log.reader(name, partition)
    [stored] = reader.read(0)
    reader.close()
    numbers = pa.array([60, 3, 61], pa.int64())
    rows = stored.slice(0, 3).drop_columns(["offset"])
    rows = rows.set_column(rows.schema.get_field_index("seq"), rows.schema.field("seq"), numbers)
    with log.appender(name, partition) as appender:
        appender.append_rows(rows, producer="replay/t.dead", number=1)
    finder = Finder(log, Receipts(tmp_path_factory.mktemp("none")))
    for seq in (3, 60, 61):
        assert finder.receipt(name, EventId("web", "till", seq)).status is Status.NEW
    with pytest.raises(UnknownMessage):
        finder.receipt(name, EventId("web", "till", 62))
