"""The way of small, known requests is a short cut: nobody can tell which way theirs went."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable

import pytest

from tests.edge.conftest import Edge
from tests.edge.http_client import parse_replies, raw, read_reply, request

Start = Callable[..., Edge]


def _shape(reply: bytes) -> bytes:
    """An answer without what differs between any two: the number, the offset and the time."""
    reply = re.sub(rb"date: [^\r]*", b"date: D", reply)
    return re.sub(rb"/\d+(\?at=0:\d+|\",)", b"/N", reply)


def test_a_request_is_answered_the_same_the_first_time_and_later(web: Edge) -> None:
    """The first of a kind goes the general way, and those after it the short one."""
    one = request(b"same size", "x-test: a")
    with web.connect() as sock:
        replies = []
        for _ in range(5):
            sock.sendall(one)
            replies.append(sock.recv(65536))
    assert {_shape(reply) for reply in replies} == {_shape(replies[0])}
    assert len(set(replies)) == 5
    assert web.payloads() == [b"same size"] * 5


def test_bodies_of_one_head_are_told_apart(web: Edge) -> None:
    bodies = [b"%03d" % number for number in range(50)] + [b"\r\n\r", b"\r\n\r\n"[:3]]
    with web.connect() as sock, sock.makefile("rb") as file:
        for number, body in enumerate(bodies):
            sock.sendall(request(body))
            reply = read_reply(file)
            assert reply.code == 202
            assert reply.body["id"].endswith(f"/{number}")
            assert reply.headers["location"].startswith(f"/receipts/{reply.body['id']}?at=0:")
    table = web.table()
    assert table.column("payload").to_pylist() == bodies
    assert table.column("seq").to_pylist() == list(range(len(bodies)))


def test_meta_belongs_to_its_own_head(web: Edge) -> None:
    with web.connect() as sock, sock.makefile("rb") as file:
        for number in range(9):
            sock.sendall(request(b"m", line=f"POST /?n={number % 3} HTTP/1.1"))
            assert read_reply(file).code == 202
    found = [dict(meta) for meta in web.table().column("meta").to_pylist()]
    assert found == [{"n": str(number % 3)} for number in range(9)]


@pytest.mark.parametrize("pieces", [1, 2, 3, 7])
def test_the_order_holds_whichever_way_each_request_goes(web: Edge, pieces: int) -> None:
    """Requests for the short way, among others for the general one, cut anywhere on the wire."""
    lines = "content-type: application/x-ndjson"
    some = [request(b"a1"), request(b"l1\nl2\nl3", lines), request(b"a2"), request(b"a3" * 2000)]
    expected = [b"a1", b"l1", b"l2", b"l3", b"a2", b"a3" * 2000]
    with web.connect() as sock, sock.makefile("rb") as file:
        for turn in range(12):
            data = b"".join(some)
            size = len(data) // pieces + turn + 1
            for at in range(0, len(data), size):
                sock.sendall(data[at : at + size])
            assert [read_reply(file).code for _ in some] == [202] * len(some)
    table = web.table()
    assert table.column("payload").to_pylist() == expected * 12
    assert table.column("seq").to_pylist() == list(range(len(expected) * 12))


def test_a_request_without_a_body_is_a_message_without_bytes(web: Edge) -> None:
    replies = parse_replies(raw(web, request() * 3))
    assert [reply.code for reply in replies] == [202] * 3
    assert web.payloads() == [b""] * 3


def test_a_body_over_the_limit_is_refused_however_often_it_comes(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "max_message_bytes": 10})
    with web.connect() as sock, sock.makefile("rb") as file:
        for _ in range(3):
            sock.sendall(request(b"x" * 11))
            assert read_reply(file).code == 413
            sock.sendall(request(b"x" * 10))
            assert read_reply(file).code == 202
    assert web.payloads() == [b"x" * 10] * 3


def test_counters_count_it_like_any_other(edge: Start) -> None:
    web = edge("receiver.http")
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    for _ in range(10):
        client.request("POST", "/", b"four")
        assert client.getresponse().read()
    counted = web.stats()["peers"]["in"]
    assert (counted["recv"], counted["out"], counted["err"]) == (10, 10, 0)
    assert counted["recv_bytes"] == 40


def test_a_stop_answers_it_and_says_that_the_connection_ends(edge: Start) -> None:
    web = edge("receiver.http")
    with web.connect() as sock, sock.makefile("rb") as file:
        for _ in range(3):
            sock.sendall(request(b"m"))
            assert "connection" not in read_reply(file).headers
        assert web.stop() == 0
        assert file.read() == b""
    assert web.payloads() == [b"m"] * 3
