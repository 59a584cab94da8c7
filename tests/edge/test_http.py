"""What a sender sees of `receiver.http`."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.conftest import Edge

Start = Callable[..., Edge]


def post(
    connection: http.client.HTTPConnection, body: bytes, path: str = "/", **headers: str
) -> tuple[int, dict[str, Any]]:
    connection.request("POST", path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@pytest.fixture
def web(edge: Start) -> Edge:
    return edge("receiver.http")


@pytest.fixture
def client(web: Edge) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*web.host_port, timeout=30)


def raw(web: Edge, data: bytes) -> bytes:
    with web.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while chunk := sock.recv(65536):
            answer += chunk
    return answer


def test_a_post_is_durable_when_it_is_answered(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    code, reply = post(client, b"hello", "/?dest=a&x=%C3%BC")
    assert code == 202
    assert reply["status"] == "new"
    assert web.payloads() == [b"hello"]
    row = web.table().to_pylist()[0]
    assert reply["id"] == f"in/{row['stream']}/{row['seq']}"
    assert row["meta"] == [("dest", "a"), ("x", "ü")]


def test_a_kept_connection_is_one_stream_in_order(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    for i in range(20):
        assert post(client, b"%d" % i)[0] == 202
    table = web.table()
    assert table.column("seq").to_pylist() == list(range(20))
    assert len(set(table.column("stream").to_pylist())) == 1


def test_pipelined_requests_are_answered_in_order(web: Edge) -> None:
    one = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n%02d"
    answer = raw(web, b"".join(one % i for i in range(50)))
    ids = [
        json.loads(part.split(b"\r\n\r\n")[1])["id"] for part in answer.split(b"HTTP/1.1 202 ")[1:]
    ]
    assert [int(found.rpartition("/")[2]) for found in ids] == list(range(50))
    assert web.payloads() == [b"%02d" % i for i in range(50)]


def test_ndjson_is_one_message_a_line(web: Edge, client: http.client.HTTPConnection) -> None:
    code, reply = post(
        client, b'{"a":1}\n\n{"a":2}\r\n{"a":3}', content_type="application/x-ndjson"
    )
    assert (code, reply["count"]) == (202, 3)
    assert web.payloads() == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_chunked_bodies_are_put_together(web: Edge) -> None:
    answer = raw(
        web,
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 202 ")
    assert web.payloads() == [b"abcde"]


def test_expect_continue_is_answered_before_the_body(web: Edge) -> None:
    with web.connect() as sock:
        sock.sendall(
            b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        )
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"ok")
        assert sock.recv(1000).startswith(b"HTTP/1.1 202 ")
    assert web.payloads() == [b"ok"]


def test_an_idempotency_key_makes_one_message(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    first = post(client, b"a", Idempotency_Key="k1")
    again = post(client, b"a", Idempotency_Key="k1")
    assert first[1]["id"] == again[1]["id"] == "in/key:k1/0"
    assert again[1]["repeats"] == 1
    assert web.payloads() == [b"a"]


def test_a_numbered_stream_drops_repeats_after_a_kill(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    named = {"Penstock_Stream": "s", "Penstock_Sequence": "0"}
    assert post(client, b"a", **named)[0] == 202
    web.kill()
    web.start()
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"a", **named)[1]["repeats"] == 1
    assert post(client, b"c", Penstock_Stream="s", Penstock_Sequence="2")[0] == 202
    assert post(client, b"b", Penstock_Stream="s", Penstock_Sequence="1")[0] == 409
    assert web.payloads() == [b"a", b"c"]


@pytest.mark.parametrize(
    ("request_head", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"HEAD / HTTP/1.1\r\nhost: x\r\n\r\n", 405),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999999\r\n\r\n", 413),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\ncontent-encoding: br\r\n\r\n", 415),
        (b"POST / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 40_000 + b"\r\n\r\n", 431),
        (b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", 400),
    ],
)
def test_what_is_not_a_message_is_refused(web: Edge, request_head: bytes, code: int) -> None:
    answer = raw(web, request_head)
    assert answer.startswith(b"HTTP/1.1 %d " % code)
    if request_head.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")
    assert web.payloads() == []


def test_only_the_path_and_what_is_below_it_takes_messages(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "path": "/in"})
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"x", "/in")[0] == 202
    assert post(client, b"x", "/in/a?b=c")[0] == 202
    assert post(client, b"x", "/inside")[0] == 404
    assert post(client, b"x", "/")[0] == 404
    assert len(web.payloads()) == 2


def test_a_token_is_needed_where_one_is_set(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "tokens": ["s3cret"]})
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"x")[0] == 401
    assert post(client, b"x", Authorization="Bearer wrong")[0] == 401
    assert post(client, b"x", Authorization="Bearer s3cret")[0] == 202
    assert web.payloads() == [b"x"]


def test_counters_and_a_clean_stop(web: Edge, client: http.client.HTTPConnection) -> None:
    post(client, b"12345")
    stats = web.stats()
    assert stats["peers"]["in"]["out"] == stats["peers"]["in"]["recv"] == 1
    assert stats["peers"]["in"]["connections"] == 1
    assert stats["partitions"]["t/0"]["end"] == 1
    assert web.stop() == 0
    assert web.log.describe(web.topic).partitions[0].writer is None
