"""A topic with `ids: producer`: what is answered with 202 is stored, and what has no id is refused."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from tests.cli.commands import penstock
from tests.edge.conftest import Edge
from tests.edge.http_client import ask, parse_replies, post, raw, request

Start = Callable[..., Edge]
REASON = "takes its ids from its producers"


@pytest.fixture
def numbered(tmp_path: Path, edge: Start) -> Edge:
    EmbeddedLog(tmp_path).create(TopicName.parse("t"), TopicConfig(ids="producer"))
    return edge("receiver.http", made=True)


@pytest.fixture
def client(numbered: Edge) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(*numbered.host_port, timeout=30)
    yield connection
    connection.close()


def number(stream: str, seq: int) -> dict[str, str]:
    return {"Penstock_Stream": stream, "Penstock_Sequence": str(seq)}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Idempotency_Key": "k"},
        {"Content_Type": "application/x-ndjson"},
        {"ce_id": "1", "ce_source": "s", "ce_type": "t", "ce_specversion": "1.0"},
    ],
)
def test_what_comes_without_an_id_is_refused_and_not_called_a_repeat(
    numbered: Edge, client: http.client.HTTPConnection, headers: dict[str, Any]
) -> None:
    for _ in range(3):
        code, body = post(client, b"plain", **headers)
        assert (code, body["status"]) == (400, "invalid")
        assert REASON in body["reason"]
    assert numbered.payloads() == []


def test_requests_that_go_the_short_way_are_refused_too(numbered: Edge) -> None:
    replies = parse_replies(raw(numbered, request(b"small") * 5))
    assert [reply.code for reply in replies] == [400] * 5
    assert all(REASON in reply.body["reason"] for reply in replies)
    assert numbered.payloads() == []


def test_ids_have_one_order_whatever_the_stream(
    numbered: Edge, client: http.client.HTTPConnection
) -> None:
    assert post(client, b"ten", **number("a", 10))[0] == 202
    code, body = post(client, b"twelve", **number("b", 12))
    assert (code, "repeats" in body) == (202, False)
    for stream, seq in (("a", 12), ("b", 11), ("c", 10)):
        code, body = post(client, b"late", **number(stream, seq))
        assert (code, body["repeats"]) == (202, 1)
    assert numbered.payloads() == [b"ten", b"twelve"]
    numbered.kill()
    numbered.start()
    again = http.client.HTTPConnection(*numbered.host_port, timeout=30)
    assert post(again, b"late", **number("a", 12))[1]["repeats"] == 1
    assert ask(again, "POST", "/", b"13", **number("a", 13)).code == 202
    again.close()
    assert numbered.payloads() == [b"ten", b"twelve", b"13"]


def test_send_needs_a_number(tmp_path: Path) -> None:
    log, name = EmbeddedLog(tmp_path / ".penstock"), TopicName.parse("ids")
    assert penstock("topics", "create", "ids", "--ids", "producer", cwd=tmp_path).code == 0
    for arguments in ((), ("--stream", "s")):
        sent = penstock("send", "ids", "a", "b", *arguments, cwd=tmp_path)
        assert (sent.code, sent.out) == (2, "")
        assert "give --stream and --seq" in sent.err
    assert log.reader(name, 0).end() == 0
    first = penstock("send", "ids", "a", "b", "--stream", "s", "--seq", "0", cwd=tmp_path)
    assert (first.code, first.err) == (0, "")
    again = penstock("send", "ids", "b", "c", "--stream", "s", "--seq", "1", cwd=tmp_path)
    assert "1 were there already" in again.out
    assert log.reader(name, 0).end() == 3
