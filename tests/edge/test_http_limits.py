"""What `receiver.http` does at its limits, and how it stops."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.conftest import Edge
from tests.edge.http_client import parse_replies, post, raw, read_all, read_reply, request

Start = Callable[..., Edge]


def options(**more: Any) -> dict[str, Any]:
    return {"bind": "127.0.0.1:0", **more}


def drip(sock: socket.socket, data: bytes, pause_s: float) -> threading.Thread:
    """Send bytes one by one, until the other side has had enough."""

    def send() -> None:
        try:
            for at in range(len(data)):
                sock.sendall(data[at : at + 1])
                time.sleep(pause_s)
        except OSError:
            return

    thread = threading.Thread(target=send)
    thread.start()
    return thread


# --- Time --------------------------------------------------------------------------------------


@pytest.fixture
def hasty(edge: Start) -> Edge:
    return edge(
        "receiver.http", options(header_timeout_s=0.5, body_timeout_s=0.5, idle_timeout_s=0.5)
    )


def test_slow_clients_are_sent_away_and_the_others_served(hasty: Edge) -> None:
    with hasty.connect() as headers, hasty.connect() as body, hasty.connect() as idle:
        # Headers have a time in all: a byte now and then does not extend it.
        dripping = drip(headers, request(b"x", "a: " + "b" * 10_000), 0.05)
        body.sendall(request(b"a", "content-length: 2"))
        idle.sendall(request(b"whole"))
        assert read_reply(headers.makefile("rb")).code == 408
        assert read_reply(body.makefile("rb")).code == 408
        reply, *more = parse_replies(read_all(idle))
        assert (reply.code, more) == (202, [])
        headers.shutdown(socket.SHUT_RDWR)
        dripping.join()
    with hasty.connect() as silent:
        assert read_all(silent) == b""
    client = http.client.HTTPConnection(*hasty.host_port, timeout=30)
    assert post(client, b"next")[0] == 202
    assert hasty.payloads() == [b"whole", b"next"]


def test_a_body_that_keeps_coming_may_take_its_time(hasty: Edge) -> None:
    with hasty.connect() as sock:
        sock.sendall(request(b"", "content-length: 10"))
        sending = drip(sock, b"0123456789", 0.15)  # three times the longest silence in all
        assert read_reply(sock.makefile("rb")).code == 202
        sending.join()
    assert hasty.payloads() == [b"0123456789"]


# --- Numbers and bytes -------------------------------------------------------------------------


def test_one_connection_too_many_is_told_so(edge: Start) -> None:
    web = edge("receiver.http", options(max_connections=2))
    with web.connect() as one, web.connect() as two:
        one.sendall(request(b"1"))
        two.sendall(request(b"2"))
        assert read_reply(one.makefile("rb")).code == 202
        assert read_reply(two.makefile("rb")).code == 202
        with web.connect() as three:
            reply = read_reply(three.makefile("rb"))
            assert (reply.code, reply.headers["retry-after"]) == (503, "1")
            assert "too many connections" in reply.body["reason"]
    peers = web.stats()["peers"]["in"]
    assert peers["refused"] == 1
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"3")[0] == 202


def test_bytes_being_received_have_a_limit_and_are_given_back(edge: Start) -> None:
    web = edge("receiver.http", options(max_inflight_bytes=100_000))
    part = request(b"x" * 60_000, "content-length: 60001")
    for _ in range(3):  # what is not given back would add up
        with web.connect() as one, web.connect() as two:
            one.sendall(part)
            two.sendall(part)
            one_first = _first_refused(one, two)
            refused, other = (one, two) if one_first else (two, one)
            reply = read_reply(refused.makefile("rb"))
            assert (reply.code, reply.headers["retry-after"]) == (503, "1")
            other.sendall(b"!")
            assert read_reply(other.makefile("rb")).code == 202
    assert [len(payload) for payload in web.payloads()] == [60_001] * 3


def _first_refused(one: socket.socket, two: socket.socket) -> bool:
    import select

    readable, _, _ = select.select([one, two], [], [], 30)
    return one in readable


def test_a_log_that_is_behind_is_told_and_loses_nothing(edge: Start) -> None:
    web = edge("receiver.http", max_pending_bytes=0)
    # In one read: the second comes while the first is on its way to the disk.
    first, second = parse_replies(raw(web, request(b"first") + request(b"second")))
    assert (first.code, second.code, second.headers["retry-after"]) == (202, 503, "1")
    assert "behind" in second.body["reason"]
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"second")[0] == 202
    assert web.payloads() == [b"first", b"second"]


def send_until(sock: socket.socket, data: bytes, ending: type[OSError]) -> int:
    """Send without reading; says how many bytes went out before that came to an end."""
    sent = 0
    try:
        while True:
            sent += sock.send(data)
    except ending:
        return sent


def test_a_client_that_does_not_read_is_not_read_from(web: Edge) -> None:
    one = request(b"x" * 10)
    with web.connect() as sock:
        sock.settimeout(2)
        whole, part = divmod(send_until(sock, one * 1000, TimeoutError), len(one))
        sock.settimeout(30)
        answers = sock.makefile("rb")
        for number in range(whole):
            assert read_reply(answers).body["id"].endswith(f"/{number}")
        rest = one[part:] if part else b""
        sock.sendall(rest + request(b"last", "connection: close"))
        assert len(parse_replies(answers.read())) == (1 if part else 0) + 1


def test_a_client_that_never_reads_is_sent_away(edge: Start) -> None:
    web = edge("receiver.http", options(idle_timeout_s=0.5))
    with web.connect() as sock:
        sock.settimeout(30)
        send_until(sock, request(b"x" * 10) * 1000, ConnectionError)
    assert web.stats()["peers"]["in"]["connections"] == 0


# --- Stop --------------------------------------------------------------------------------------


def test_a_stop_answers_what_was_sent_and_gives_half_a_request_a_moment(edge: Start) -> None:
    web = edge("receiver.http")
    with web.connect() as whole, web.connect() as half, web.connect() as idle:
        half.sendall(request(b"ha", "content-length: 4"))
        whole.sendall(request(b"before"))
        assert read_reply(whole.makefile("rb")).code == 202
        web.process.send_signal(signal.SIGTERM)
        assert read_all(idle) == b""
        assert read_all(whole) == b""
        with pytest.raises(ConnectionRefusedError):
            web.connect()
        half.sendall(b"lf")
        reply = read_reply(half.makefile("rb"))
        assert (reply.code, reply.headers["connection"]) == (202, "close")
        assert read_all(half) == b""
        assert web.process.wait(30) == 0
    assert web.payloads() == [b"before", b"half"]
    assert web.log.describe(web.topic).partitions[0].writer is None


def test_half_a_request_that_never_becomes_whole_is_told_so(edge: Start) -> None:
    web = edge("receiver.http", stop_timeout_s=1.0)
    with web.connect() as head, web.connect() as body:
        head.sendall(b"POST / HTTP/1.1\r\nhost")
        body.sendall(request(b"ha", "content-length: 4"))
        time.sleep(0.2)
        web.process.send_signal(signal.SIGTERM)
        for sock in (head, body):
            reply = read_reply(sock.makefile("rb"))
            assert reply.code == 503
            assert "stops" in reply.body["reason"]
        assert web.process.wait(30) == 0
    assert web.payloads() == []


def test_requests_that_wait_for_the_disk_are_answered_before_the_end(edge: Start) -> None:
    web = edge("receiver.http")
    line = b"x" * 1000 + b"\n"
    kind = "content-type: application/x-ndjson"
    many = b"".join(request(line * 2000, kind) for _ in range(10))
    with web.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(many)
        first = read_reply(answers)
        web.process.send_signal(signal.SIGTERM)
        replies = [first, *parse_replies(answers.read())]
        assert web.process.wait(30) == 0
    assert {reply.code for reply in replies} == {202}
    stored = len(web.payloads())
    assert stored == sum(reply.body["count"] for reply in replies)


def test_a_second_signal_ends_it_at_once(edge: Start) -> None:
    web = edge("receiver.http", stop_timeout_s=600.0)
    with web.connect() as sock:
        sock.sendall(request(b"ha", "content-length: 4"))
        time.sleep(0.2)
        web.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert web.process.poll() is None, "it should have waited for the half request"
        web.process.send_signal(signal.SIGTERM)
        assert web.process.wait(30) == 1
    assert web.log.describe(web.topic).partitions[0].writer is None
