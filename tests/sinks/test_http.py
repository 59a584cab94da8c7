"""`sink.http`."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.guarantee import Guarantee
from penstock.sinks.http import HttpSink
from penstock.sinks.interface import Poisoned, Sink, SinkUnavailable

from .components import sink_of
from .conftest import Authority
from .contract import FIRST, SinkContract
from .making import events
from .servers import HttpServer, Request


def http(server: HttpServer, path: str = "/events", **params: Any) -> HttpSink:
    found = sink_of("http", {"url": f"http://127.0.0.1:{server.port}{path}", **params})
    assert isinstance(found, HttpSink)
    return found


@pytest.fixture
def server() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.close()


def send(sink: Sink, *batches: pa.RecordBatch) -> list[tuple[int, str]]:
    """Offset and reason of what was refused."""
    task = sink.task(FIRST, 0, 0)
    for batch in batches:
        task.write(batch)
    return [
        (offset, reason)
        for refused in task.prepare().refused
        for offset, reason in zip(
            refused.events.column("offset").to_pylist(), refused.reasons, strict=True
        )
    ]


class TestHttp(SinkContract):
    @pytest.fixture
    def sink(self, server: HttpServer) -> Iterator[Sink]:
        self.server = server
        yield (sink := http(server))
        sink.close()

    def seen(self, sink: Sink) -> list[bytes]:
        return self.server.bodies

    def test_it_promises_no_more_than_it_can(self, sink: Sink) -> None:
        assert sink.guarantee is Guarantee.AT_LEAST_ONCE


class TestHttpBatches(TestHttp):
    @pytest.fixture
    def sink(self, server: HttpServer) -> Iterator[Sink]:
        self.server = server
        yield (sink := http(server, batch=True))
        sink.close()

    def seen(self, sink: Sink) -> list[bytes]:
        return [line for body in self.server.bodies for line in body.splitlines()]


def test_a_request_is_as_the_configuration_says(server: HttpServer) -> None:
    sink = http(
        server, "/a/b?c=d", method="PUT", headers={"X-Token": "secret", "content-type": "a/b"}
    )
    send(sink, events(b"hello", seq=7))
    [request] = server.requests
    assert (request.method, request.path, request.body) == ("PUT", "/a/b?c=d", b"hello")
    assert request.headers["x-token"] == "secret"
    assert request.headers["content-type"] == "a/b"
    assert request.headers["idempotency-key"] == "web/s/7"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["user-agent"].startswith("penstock/")
    assert "secret" not in repr(sink)


def test_the_content_type_goes_by_the_codec(server: HttpServer) -> None:
    url = f"http://127.0.0.1:{server.port}"
    send(sink_of("http", {"url": url}, codec="json"), events(b"{}"))
    send(sink_of("http", {"url": url}), events(b"{}"))
    send(sink_of("http", {"url": url, "batch": True}), events(b"{}"))
    kinds = [request.headers["content-type"] for request in server.requests]
    assert kinds == ["application/json", "application/octet-stream", "application/x-ndjson"]


def test_keys_tell_events_of_one_message_apart_and_repeat_when_it_is_tried_again(
    server: HttpServer,
) -> None:
    one = events(b"a", stream="r\u00f6hre")
    batch = pa.Table.from_batches([one, one, events(b"b", stream="x" * 300), one]).combine_chunks()
    sink = http(server)
    for _ in range(2):
        send(sink, *batch.to_batches())
    keys = [request.headers["idempotency-key"] for request in server.requests]
    mine = [key for key in keys if "hre" in key]
    assert mine == ["web/r%C3%B6hre/0", "web/r%C3%B6hre/0#2", "web/r%C3%B6hre/0#3"] * 2
    assert len({key for key in keys if "hre" not in key}) == 1
    assert all(len(key) <= 200 for key in keys)


def test_connections_are_kept_and_each_stream_stays_in_order(server: HttpServer) -> None:
    sink = http(server, connections=3)
    streams = [
        events(*[b"%d.%d" % (stream, number) for number in range(20)], stream=f"s{stream}")
        for stream in range(6)
    ]
    for _ in range(2):
        send(sink, *streams)
    assert len(server.connections) == 3
    for stream in range(6):
        found = [body for body in server.bodies if body.startswith(b"%d." % stream)]
        assert found == [b"%d.%d" % (stream, number) for number in range(20)] * 2


@pytest.mark.parametrize("code", [400, 403, 404, 409, 413, 422])
def test_a_refusal_is_for_one_event_and_the_rest_goes_through(code: int) -> None:
    server = HttpServer(lambda request: code if request.body in (b"1", b"3") else 204)
    refused = send(http(server), events(b"0", b"1", b"2", b"3"))
    assert [offset for offset, _ in refused] == [1, 3]
    assert all(reason.startswith(str(code)) and "because" in reason for _, reason in refused)
    assert server.bodies == [b"0", b"1", b"2", b"3"]
    server.close()


def test_in_a_batch_the_event_that_is_refused_is_found() -> None:
    server = HttpServer(lambda request: 400 if b"bad" in request.body else 200)
    payloads = [b"%d" % number for number in range(1000)]
    payloads[17] = payloads[18] = payloads[999] = b"bad"
    refused = send(http(server, batch=True), events(*payloads))
    assert [offset for offset, _ in refused] == [17, 18, 999]
    taken = [line for one in server.requests if b"bad" not in one.body for line in one.body.split()]
    assert taken == [payload for payload in payloads if payload != b"bad"]
    assert len({request.headers["idempotency-key"] for request in server.requests}) == len(
        server.requests
    )
    server.close()


@pytest.mark.parametrize("code", [301, 401, 408, 429, 500, 503, None])
def test_what_is_not_the_events_fault_is_a_destination_that_is_gone(code: int | None) -> None:
    server = HttpServer(lambda request: code if request.body == b"1" else 200)
    task = http(server).task(FIRST, 0, 0)
    task.write(events(b"0", b"1", b"2"))
    with pytest.raises(SinkUnavailable, match=f"sink out: .*{code or 'closed connection'}"):
        task.prepare()
    assert b"2" not in server.bodies
    server.close()


def test_nobody_there_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        sink = sink_of("http", {"url": f"http://127.0.0.1:{taken.getsockname()[1]}/"})
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            sink.probe()
        task = sink.task(FIRST, 0, 0)
        task.write(events(b"a"))
        with pytest.raises(SinkUnavailable, match="Connection refused"):
            task.prepare()


def test_an_answer_that_does_not_come_is_given_up() -> None:
    never = threading.Event()

    def answer(request: Request) -> int:
        never.wait(20)
        return 200

    server = HttpServer(answer)
    task = http(server, timeout_s=0.3).task(FIRST, 0, 0)
    task.write(events(b"a"))
    with pytest.raises(SinkUnavailable, match="no answer in time"):
        task.prepare()
    never.set()
    server.close()


def test_a_server_that_closed_a_kept_connection_is_called_again() -> None:
    hang_up = []

    def answer(request: Request) -> int | None:
        if request.body == b"1" and not hang_up:
            hang_up.append(1)
            return None
        return 200

    server = HttpServer(answer)
    sink = http(server)
    assert send(sink, events(b"0", b"1", b"2")) == []
    assert server.bodies == [b"0", b"1", b"1", b"2"]
    assert len({one.headers["idempotency-key"] for one in server.requests}) == 3
    server.close()


def test_interceptors_pack_each_body(server: HttpServer) -> None:
    url = f"http://127.0.0.1:{server.port}/"
    send(sink_of("http", {"url": url}, interceptors=["gzip"]), events(b"a", b"b"))
    assert [gzip.decompress(body) for body in server.bodies] == [b"a", b"b"]
    send(sink_of("http", {"url": url, "batch": True}, interceptors=["gzip"]), events(b"a", b"b"))
    assert gzip.decompress(server.bodies[-1]) == b"a\nb\n"


def test_what_is_no_line_is_poison_in_a_batch(server: HttpServer) -> None:
    task = http(server, batch=True).task(FIRST, 0, 0)
    with pytest.raises(Poisoned) as caught:
        task.write(events(b"a", b"b\nc"))
    assert list(caught.value.rows) == [1]


@pytest.mark.parametrize("mutual", [False, True])
def test_tls(authority: Authority, mutual: bool, tmp_path: Path) -> None:
    server = HttpServer(tls=authority.server(mutual=mutual))
    options = authority.client(mutual=mutual).wire()
    sink = sink_of("http", {"url": f"https://127.0.0.1:{server.port}/", "tls": options})
    send(sink, events(b"a", b"b"))
    assert server.bodies == [b"a", b"b"]
    stranger = sink_of("http", {"url": f"https://127.0.0.1:{server.port}/"})
    with pytest.raises(SinkUnavailable, match="certificate"):
        stranger.probe()
    server.close()
