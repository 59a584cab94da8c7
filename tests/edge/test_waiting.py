"""Senders that wait for receipts. The engine's part is played here: it writes the same database and sends
the same frames."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.flow.parked import Parked
from penstock.flow.receipt import Branch, Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.message import EventId, home_partition
from penstock.status import Status
from tests.edge.conftest import Edge, ended
from tests.edge.http_client import Reply, ask, parse_replies, read_all, request

Start = Callable[..., Edge]


class Engine:
    """Settles what is in the topic of an edge process."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self.receipts = Receipts(edge.data_dir, writable=True)

    def settle(self, count: int, *statuses: Receipt | None) -> None:
        """Everything, once `count` messages have come since the test began; the last of them end
        as `statuses` say (None: done)."""
        self._edge.wait_for(count)
        rows = self._edge.table().select(["offset", "peer", "stream", "seq"]).to_pylist()
        exceptions = []
        for row, receipt in zip(rows[len(rows) - len(statuses) :], statuses, strict=True):
            if receipt is not None:
                event = EventId(row["peer"], row["stream"], row["seq"])
                told = Receipt(receipt.status, receipt.reason, receipt.branches, event)
                exceptions.append((Position("t", 0, row["offset"]), told))
        end = rows[-1]["offset"] + 1
        self.receipts.settle({("t", 0): end}, exceptions)
        self.tell(end, exceptions=bool(exceptions))

    def tell(self, end: int, *, exceptions: bool) -> None:
        frame = {"type": "settled", "frontiers": {"t/0": end}, "exceptions": exceptions}
        self._edge.say(frame)


class Later(threading.Thread):
    """A request that takes its time."""

    def __init__(self, edge: Edge, path: str = "/?sync=true", body: bytes = b"x", **headers: str):
        super().__init__()
        self._request = (edge.host_port, path, body, headers)
        self._reply: Reply | None = None
        self.start()

    def run(self) -> None:
        address, path, body, headers = self._request
        client = http.client.HTTPConnection(*address, timeout=60)
        self._reply = ask(client, "POST", path, body, **headers)

    @property
    def reply(self) -> Reply:
        self.join()
        assert self._reply is not None
        return self._reply


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Edge, Engine]]:
    folder = tmp_path_factory.mktemp("waiting")
    edge = Edge(folder, "receiver.http", {"bind": "127.0.0.1:0"}, engine=True)
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


# --- One message -------------------------------------------------------------------------------


def test_a_sender_learns_that_its_message_is_done(web: Edge, engine: Engine) -> None:
    waiting = Later(web, "/?sync=true&dest=a")
    engine.settle(1)
    row = web.table().to_pylist()[0]
    assert waiting.reply.code == 200
    assert waiting.reply.body == {"id": f"in/{row['stream']}/0", "status": "done"}
    assert row["meta"] == [("dest", "a")], "how a sender waits is no meta"


@pytest.mark.parametrize("status", [one for one in Status if one not in ("new", "done")])
def test_a_sender_learns_what_went_wrong(web: Edge, engine: Engine, status: Status) -> None:
    waiting = Later(web)
    branches = {"a": Branch(Status.DONE), "b": Branch(status, "no room")}
    engine.settle(1, Receipt(status, "no room", branches))
    reply = waiting.reply
    assert reply.code == status.http_code
    assert reply.body == {
        "id": reply.body["id"],
        "status": str(status),
        "reason": "no room",
        "branches": {"a": {"status": "done"}, "b": {"status": str(status), "reason": "no room"}},
    }
    assert ("retry-after" in reply.headers) == (status is Status.THROTTLED)


def test_another_s_trouble_is_not_one_s_own(web: Edge, engine: Engine) -> None:
    good = Later(web, body=b"good")
    web.wait_for(1)
    bad = Later(web, body=b"bad")
    engine.settle(2, None, Receipt(Status.FAILED, "bad"))
    assert (good.reply.code, bad.reply.code) == (200, 500)


def test_a_message_that_is_held_back_is_waited_for(web: Edge, engine: Engine) -> None:
    waiting = Later(web)
    web.wait_for(1)
    offset = web.table().column("offset").to_pylist()[0]
    places = np.array([offset], np.int64)
    engine.receipts.settle({("t", 0): offset + 1}, [], [Parked.of("slow", "t", 0, places)])
    engine.tell(offset + 1, exceptions=True)
    engine.tell(offset + 1, exceptions=True)
    waiting.join(0.5)
    assert waiting.is_alive(), "it is not done, and has not failed"
    engine.receipts.unpark("slow", {("t", 0): places})
    engine.tell(offset + 1, exceptions=True)
    assert waiting.reply.code == 200


def test_a_repeat_gets_the_receipt_of_the_first(
    web: Edge, engine: Engine, client: http.client.HTTPConnection
) -> None:
    first = Later(web, Idempotency_Key="twice")
    engine.settle(1, Receipt(Status.UNROUTABLE, "nowhere"))
    assert first.reply.code == 406
    again = ask(client, "POST", "/?sync=true", b"x", Idempotency_Key="twice")
    assert (again.code, again.body) == (406, first.reply.body)


def test_answers_keep_their_order_though_the_first_waits(web: Edge, engine: Engine) -> None:
    with web.connect() as sock:
        sync = request(b"first", line="POST /?sync=true HTTP/1.1")
        sock.sendall(sync + request(b"second", "connection: close"))
        engine.settle(2)
        first, second = parse_replies(read_all(sock))
    assert (first.code, second.code) == (200, 202)


def test_who_goes_away_leaves_nothing_behind(web: Edge, engine: Engine) -> None:
    for _ in range(3):
        with web.connect() as sock:
            sock.sendall(request(b"x", line="POST /?sync=true HTTP/1.1"))
            web.wait_for(1)
    later = Later(web)
    engine.settle(4, Receipt(Status.FAILED), Receipt(Status.FAILED), Receipt(Status.FAILED), None)
    assert later.reply.code == 200


# --- How long ----------------------------------------------------------------------------------


def test_a_preference_is_heeded_and_said_to_be(web: Edge, engine: Engine) -> None:
    waiting = Later(web, "/", Prefer='respond-async, foo="bar"; x, wait = 20')
    engine.settle(1)
    assert waiting.reply.code == 200
    assert waiting.reply.headers["preference-applied"] == "wait=20"


def test_who_would_rather_not_wait_longer_is_told_that_it_is_accepted(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    reply = ask(client, "POST", "/", b"x", Prefer="respond-async, wait=1")
    assert (reply.code, reply.body["status"]) == (202, "new")
    assert reply.headers["preference-applied"] == "wait=1"
    assert reply.headers["location"].startswith(f"/receipts/{reply.body['id']}?at=0:")


@pytest.mark.parametrize("path", ["/", "/?sync=true"])
def test_past_its_time_it_is_timed_out(
    web: Edge, client: http.client.HTTPConnection, path: str
) -> None:
    reply = ask(client, "POST", path, b"x", Prefer="wait=1")
    assert (reply.code, reply.body["status"]) == (504, "timed_out")
    assert reply.headers["preference-applied"] == "wait=1"
    assert reply.headers["location"].startswith(f"/receipts/{reply.body['id']}?at=0:")
    assert "not settled within 1 s" in reply.body["reason"]
    assert web.payloads() == [b"x"]


@pytest.mark.parametrize("wait", ["wait=0", "wait=-1", "wait=soon", "wait", "respond-async", ""])
def test_what_is_no_wait_is_none(web: Edge, client: http.client.HTTPConnection, wait: str) -> None:
    reply = ask(client, "POST", "/", b"x", Prefer=wait)
    assert reply.code == 202
    assert "preference-applied" not in reply.headers


def test_sync_is_true_or_false(web: Edge, client: http.client.HTTPConnection) -> None:
    assert ask(client, "POST", "/?sync=banana", b"x").code == 400
    assert ask(client, "POST", "/?sync=false", b"x").code == 202


def test_a_receiver_may_make_everyone_wait_who_does_not_opt_out(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "sync": True, "sync_timeout_s": 0.2}
    web = edge("receiver.http", options, engine=True)
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert ask(client, "POST", "/", b"x").code == 504
    out = ask(client, "POST", "/", b"x", Prefer="respond-async")
    assert (out.code, out.headers["preference-applied"]) == (202, "respond-async")
    assert ask(client, "POST", "/?sync=0", b"x").code == 202
    capped = ask(client, "POST", "/?sync=0", b"x", Prefer="wait=600")
    assert (capped.code, capped.headers["preference-applied"]) == (202, "wait=0")


def test_without_an_engine_sync_is_refused_and_nothing_stored(edge: Start) -> None:
    web = edge("receiver.http")
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    refused = ask(client, "POST", "/?sync=true", b"x")
    assert refused.code == 501
    assert "without its engine" in refused.body["reason"]
    assert web.payloads() == []
    plain = ask(client, "POST", "/", b"x", Prefer="wait=10")
    assert (plain.code, "preference-applied" in plain.headers) == (202, False)


# --- Restarts, and more than one process -------------------------------------------------------


def test_a_process_that_was_away_does_not_take_silence_for_success(edge: Start) -> None:
    """It was not told of the exception: it was dead."""
    web = edge("receiver.http", engine=True)
    engine = Engine(web)
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert ask(client, "POST", "/", b"x", Idempotency_Key="k").code == 202
    web.kill()
    engine.receipts.settle({("t", 0): 1}, [_exception(0, EventId("in", "key:k", 0))])
    web.start()
    later = Later(web, Idempotency_Key="k")
    other = Later(web, body=b"another")
    engine.settle(2)
    assert (later.reply.code, other.reply.code) == (406, 200)


def _exception(offset: int, event: EventId) -> tuple[Position, Receipt]:
    return Position("t", 0, offset), Receipt(Status.UNROUTABLE, "nowhere", {}, event)


def test_a_killed_process_leaves_its_messages_to_be_asked_for(edge: Start) -> None:
    web = edge("receiver.http", engine=True)
    with web.connect() as sock:
        line = "POST /?sync=true HTTP/1.1"
        sock.sendall(request(b"x", "idempotency-key: k", line=line))
        web.wait_for(1)
        web.kill()
        assert read_all(sock) == b"", "no answer is not a wrong one"
    web.start()
    again = Later(web, Idempotency_Key="k")
    Engine(web).settle(1)
    assert again.reply.code == 200
    assert web.payloads() == [b"x"]


def test_messages_of_another_process_s_partition_are_waited_for(
    edge: Start, tmp_path: Path
) -> None:
    key = next(f"k{n}" for n in range(99) if home_partition("in", f"key:k{n}", 2) == 1)
    till = next(f"t{n}" for n in range(99) if home_partition("in", f"t{n}", 2) == 1)
    usual = {"engine": True, "processes": 2}
    first, second = (edge("receiver.http", process=number, **usual) for number in range(2))
    receipts = Receipts(tmp_path, writable=True)

    def settle(end: int, *exceptions: tuple[int, EventId]) -> None:
        first.log.reader(first.topic, 1).wait(end - 1, 30)
        gone = [
            (Position("t", 1, at), Receipt(Status.FAILED, "bad", {}, event))
            for at, event in exceptions
        ]
        receipts.settle({("t", 1): end}, gone)
        for one in (first, second):
            one.say({"type": "settled", "frontiers": {"t/1": end}, "exceptions": bool(gone)})

    waiting = Later(first, Idempotency_Key=key)
    settle(1, (0, EventId("in", f"key:{key}", 0)))
    assert (waiting.reply.code, waiting.reply.body["reason"]) == (500, "bad")
    named = {"Penstock_Stream": till, "Penstock_Sequence": "0", **NDJSON}
    many = Later(first, body=b"0\n1\n2", **named)
    settle(4, (2, EventId("in", till, 1)))
    assert many.reply.body["statuses"] == {"done": 2, "failed": 1}
    for one in (first, second):  # repeats, wherever they come to
        assert Later(one, Idempotency_Key=key).reply.body == waiting.reply.body
        again = Later(one, body=b"0\n1\n2", **named).reply
        assert (again.code, again.body) == (409, many.reply.body)
        client = http.client.HTTPConnection(*one.host_port, timeout=30)
        for seq, status in ((0, "done"), (1, "failed"), (2, "done")):
            assert ask(client, "GET", f"/receipts/in/{till}/{seq}").body["status"] == status
        assert ask(client, "GET", f"/receipts/in/{till}/3").code == 404
    assert first.table(1).num_rows == 4


# --- Many messages -----------------------------------------------------------------------------


NDJSON = {"Content_Type": "application/x-ndjson"}


def test_many_messages_have_one_answer_with_counts(web: Edge, engine: Engine) -> None:
    waiting = Later(web, body=b"a\nb\nc\nd", **NDJSON)
    engine.settle(4, Receipt(Status.FAILED, "bad"), None, Receipt(Status.INVALID, "worse"))
    reply = waiting.reply
    assert (reply.code, reply.body["status"], reply.body["count"]) == (409, "partial", 4)
    assert reply.body["statuses"] == {"done": 2, "failed": 1, "invalid": 1}
    stream = reply.body["first"].rpartition("/")[0]
    assert reply.body["exceptions"] == [
        {"id": f"{stream}/1", "status": "failed", "reason": "bad"},
        {"id": f"{stream}/3", "status": "invalid", "reason": "worse"},
    ]


def test_many_are_done_only_when_the_last_is(web: Edge, engine: Engine) -> None:
    waiting = Later(web, body=b"a\nb\nc", **NDJSON)
    web.wait_for(3)
    offset = web.table().column("offset").to_pylist()[0]
    engine.receipts.settle({("t", 0): offset + 2}, [])
    engine.tell(offset + 2, exceptions=False)
    waiting.join(0.3)
    assert waiting.is_alive()
    engine.settle(3)
    assert (waiting.reply.code, waiting.reply.body["statuses"]) == (200, {"done": 3})


def test_only_the_first_exceptions_of_very_many_are_listed(web: Edge, engine: Engine) -> None:
    count = 500
    waiting = Later(web, body=b"x\n" * count, **NDJSON)
    engine.settle(count, *[Receipt(Status.THROTTLED, "slowly")] * count)
    reply = waiting.reply
    assert (reply.code, reply.body["statuses"]) == (429, {"throttled": count})
    assert len(reply.body["exceptions"]) == 100


def test_repeats_among_new_messages_are_waited_for_where_they_are(
    web: Edge, engine: Engine
) -> None:
    named = {"Penstock_Stream": "mixed", **NDJSON}
    first = Later(web, body=b"0\n1", Penstock_Sequence="0", **named)
    engine.settle(2, Receipt(Status.FAILED, "bad"), None)
    assert first.reply.code == 409
    second = Later(web, body=b"between")
    engine.settle(3)
    assert second.reply.code == 200
    more = Later(web, body=b"0\n1\n2", Penstock_Sequence="0", **named)
    engine.settle(4)
    assert more.reply.body["statuses"] == {"done": 2, "failed": 1}


def test_events_wait_wherever_they_are(web: Edge, engine: Engine) -> None:
    events = [
        {"specversion": "1.0", "id": str(n), "source": "/waiting", "type": "t"} for n in range(3)
    ]
    kind = {"Content_Type": "application/cloudevents-batch+json"}
    waiting = Later(web, body=json.dumps(events).encode(), **kind)
    engine.settle(3)
    assert (waiting.reply.code, waiting.reply.body["statuses"]) == (200, {"done": 3})
    assert waiting.reply.body["ids"][2] == "in/key:/waiting 2/0"
    none = Later(web, body=b"[]", **kind)
    assert (none.reply.code, none.reply.body["status"]) == (200, "done")


# --- Stop --------------------------------------------------------------------------------------


def test_a_stop_lets_those_who_wait_have_their_receipts(edge: Start) -> None:
    web = edge("receiver.http", engine=True)
    engine = Engine(web)
    waiting = Later(web)
    web.wait_for(1)
    web.process.send_signal(signal.SIGTERM)
    engine.settle(1)
    assert (waiting.reply.code, waiting.reply.headers["connection"]) == (200, "close")
    assert web.process.wait(30) == 0


def test_a_stop_does_not_wait_for_ever(edge: Start) -> None:
    web = edge("receiver.http", engine=True, stop_timeout_s=1.0)
    waiting = Later(web)
    web.wait_for(1)
    web.process.send_signal(signal.SIGTERM)
    assert waiting.reply.code == 504
    assert "the receiver stops" in waiting.reply.body["reason"]
    assert web.process.wait(30) == 0


def test_without_a_supervisor_those_who_wait_are_answered(edge: Start) -> None:
    web = edge("receiver.http", engine=True, stop_timeout_s=1.0)
    waiting = Later(web)
    web.wait_for(1)
    web.control.close()
    assert (waiting.reply.code, waiting.reply.body["status"]) == (504, "timed_out")
    assert web.process.wait(30) == 0


# --- Status lines ------------------------------------------------------------------------------


def test_lines_say_what_became_of_each_message_in_order(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "reply": "status", "reply_timeout_s": 1.0}
    tcp = edge("receiver.tcp", options, interceptors=[("lines", {})], engine=True)
    engine = Engine(tcp)
    with tcp.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(b"a\nb\nc\n")
        engine.settle(3, None, Receipt(Status.FAILED, "two\nlines"), None)
        stream = tcp.table().column("stream").to_pylist()[0]
        assert [answers.readline().decode() for _ in range(3)] == [
            f"done in/{stream}/0\n",
            f"failed in/{stream}/1 two lines\n",
            f"done in/{stream}/2\n",
        ]
        sock.sendall(b"d\n")
        assert answers.readline().decode() == f"timed_out in/{stream}/3\n"
        sock.sendall(b"e\n")
        sock.shutdown(socket.SHUT_WR)
        engine.settle(5)
        assert answers.read().decode() == f"done in/{stream}/4\n"


def test_what_came_before_a_mistake_is_answered(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "reply": "status"}
    lines = [("lines", {"max_length": 10})]
    tcp = edge("receiver.tcp", options, interceptors=lines)
    with tcp.connect() as sock:
        sock.sendall(b"good\n" + b"x" * 100)
        answer = read_all(sock).splitlines()
    assert answer[0].startswith(b"new in/")
    assert answer[1].startswith(b"error ")
    assert len(answer) == 2


def test_unix_connections_are_answered_too(edge: Start, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    options: dict[str, Any] = {"path": path, "reply": "status"}
    unix = edge("receiver.unix", options, interceptors=[("lines", {})], engine=True)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        sock.connect(path)
        sock.sendall(b"a\n")
        Engine(unix).settle(1)
        assert sock.makefile("rb").readline().startswith(b"done in/~")
