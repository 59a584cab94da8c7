"""CloudEvents posted to `receiver.http`: binary, structured and batch."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.edge.conftest import Edge
from tests.edge.http_client import ask, post

Start = Callable[..., Edge]
STRUCTURED = "application/cloudevents+json; charset=utf-8"
BATCH = "application/cloudevents-batch+json"


def event(number: int, **more: Any) -> dict[str, Any]:
    named = {"specversion": "1.0", "id": str(number), "source": "/shop", "type": "order.placed"}
    return {**named, "data": {"n": number}, **more}


def headers(number: int, **more: str) -> dict[str, str]:
    attributes = {"specversion": "1.0", "id": str(number), "source": "/bin", "type": "t", **more}
    return {f"ce-{name}": value for name, value in attributes.items()}


@pytest.fixture
def client(web: Edge) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*web.host_port, timeout=30)


def test_binary_mode_has_attributes_in_headers_and_data_in_the_body(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    sent = headers(1, subject="Euro%20%E2%82%AC", colour="red")
    code, reply = post(client, b"\xff\x00", "/?dest=a", content_type="image/x", **sent)
    assert code == 202
    assert reply["id"] == "in/key:/bin 1/0"
    row = web.table().to_pylist()[0]
    assert row["payload"] == b"\xff\x00"
    assert dict(row["meta"]) == {
        "dest": "a",
        "ce_specversion": "1.0",
        "ce_id": "1",
        "ce_source": "/bin",
        "ce_type": "t",
        "ce_subject": "Euro €",
        "ce_colour": "red",
        "ce_datacontenttype": "image/x",
    }


def test_structured_mode_has_everything_in_the_body(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    body = b'{"data": {"price": 1.10},' + json.dumps(event(2)).encode()[1:].replace(
        b', "data": {"n": 2}', b""
    )
    code, reply = post(client, body, "/?dest=a", content_type=STRUCTURED)
    assert (code, reply) == (202, {"id": "in/key:/shop 2/0", "status": "new"})
    row = web.table().to_pylist()[0]
    assert row["payload"] == b'{"price": 1.10}'
    assert dict(row["meta"])["ce_type"] == "order.placed"
    assert dict(row["meta"])["dest"] == "a"


def test_a_batch_is_one_message_an_event(web: Edge, client: http.client.HTTPConnection) -> None:
    events = [event(10), event(11, data_base64="/w==", data=None), event(12, subject="s")]
    del events[1]["data"]
    code, reply = post(client, json.dumps(events).encode(), content_type=BATCH)
    assert (code, reply["count"]) == (202, 3)
    assert reply["ids"] == [f"in/key:/shop {number}/0" for number in (10, 11, 12)]
    rows = web.table().to_pylist()
    assert [row["payload"] for row in rows] == [b'{"n": 10}', b"\xff", b'{"n": 12}']
    assert [dict(row["meta"])["ce_id"] for row in rows] == ["10", "11", "12"]


def test_a_batch_may_be_empty(web: Edge, client: http.client.HTTPConnection) -> None:
    assert post(client, b"[]", content_type=BATCH) == (
        202,
        {"count": 0, "ids": [], "status": "new"},
    )
    assert web.payloads() == []


def test_the_same_event_is_stored_once_whatever_the_mode(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    alone = json.dumps(event(20)).encode()
    assert post(client, alone, content_type=STRUCTURED)[0] == 202
    assert post(client, alone, content_type=STRUCTURED)[1]["repeats"] == 1
    both = json.dumps([event(20), event(21), event(21)]).encode()
    assert post(client, both, content_type=BATCH)[1]["repeats"] == 2
    binary = headers(21, source="/shop", type="order.placed")
    assert post(client, b'{"n": 21}', content_type="application/json", **binary)[1]["repeats"] == 1
    assert len(web.payloads()) == 2


def test_a_sender_that_numbers_its_events_keeps_their_order(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    named = {"Penstock_Stream": "events", "Penstock_Sequence": "5"}
    both = json.dumps([event(30), event(30)]).encode()
    code, reply = post(client, both, content_type=BATCH, **named)
    assert (code, reply["first"], reply["last"]) == (202, "in/events/5", "in/events/6")
    assert post(client, both, content_type=BATCH, **named)[1]["repeats"] == 2
    assert len(web.payloads()) == 2
    alone = post(client, json.dumps(event(31)).encode(), content_type=STRUCTURED, **named)
    assert alone[1] == {"id": "in/events/5", "status": "new", "repeats": 1}


@pytest.mark.parametrize(
    ("kind", "body", "code", "reason"),
    [
        (STRUCTURED, b"{", 400, "not JSON"),
        (STRUCTURED, b'{"specversion": "1.0"}', 400, "'id' is missing"),
        (STRUCTURED, json.dumps(event(1, specversion="0.3")).encode(), 400, "only '1.0'"),
        (BATCH, json.dumps([event(40), {"id": "x"}]).encode(), 400, "event 1 of the batch"),
        (BATCH, json.dumps(event(1)).encode(), 400, "a JSON array"),
        ("application/cloudevents-batch+avro", b"", 415, "in JSON only"),
    ],
)
def test_what_is_no_event_is_refused_whole(
    web: Edge,
    client: http.client.HTTPConnection,
    kind: str,
    body: bytes,
    code: int,
    reason: str,
) -> None:
    reply = ask(client, "POST", body=body, content_type=kind)
    assert reply.code == code
    assert reason in reply.body["reason"]
    assert web.payloads() == []


def test_headers_that_make_no_event_are_refused(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    missing = headers(50)
    del missing["ce-type"]
    assert post(client, b"x", **missing)[0] == 400
    assert post(client, b"x", **headers(51, time="yesterday"))[0] == 400
    assert post(client, b"x", **headers(52, subject="%zz"))[0] == 400
    assert post(client, b"plain", Ce_Trace="of another kind")[0] == 202
    assert web.payloads() == [b"plain"]


def test_a_batch_cannot_have_one_key_for_all(web: Edge, client: http.client.HTTPConnection) -> None:
    body = json.dumps([event(60)]).encode()
    assert post(client, body, content_type=BATCH, Idempotency_Key="k")[0] == 400
    alone = json.dumps(event(60)).encode()
    assert post(client, alone, content_type=STRUCTURED, Idempotency_Key="own")[1]["id"] == (
        "in/key:own/0"
    )


def test_events_are_just_bodies_where_the_mode_says_so(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "mode": "one"})
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    body = json.dumps(event(1)).encode()
    for _ in range(2):
        assert post(client, body, content_type=STRUCTURED, **headers(1))[0] == 202
    assert web.payloads() == [body, body]
    assert web.table().to_pylist()[0]["meta"] == []


def test_packed_events_are_unpacked_first(edge: Start) -> None:
    import gzip

    web = edge("receiver.http", interceptors=[("gzip", {})])
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    body = gzip.compress(json.dumps([event(1), event(2)]).encode())
    assert post(client, body, content_type=BATCH, content_encoding="gzip")[1]["count"] == 2
    assert web.payloads() == [b'{"n": 1}', b'{"n": 2}']
