"""What a sender sees of `receiver.http`."""

from __future__ import annotations

import email.utils
import gzip
import http.client
import struct
from collections.abc import Callable

import pytest

from tests.edge.conftest import Edge
from tests.edge.http_client import ask, parse_replies, post, raw, read_reply, request

Start = Callable[..., Edge]


@pytest.fixture
def client(web: Edge) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(*web.host_port, timeout=30)


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


def test_an_answer_says_where_the_receipt_will_be_and_what_time_it_is(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    first = ask(client, "POST", body=b"a")
    keyed = ask(client, "POST", body=b"b", Idempotency_Key="order 42/é?")
    at = web.table().column("offset").to_pylist()
    assert first.headers["location"] == f"/receipts/{first.body['id']}?at=0:{at[0]}"
    assert keyed.headers["location"] == f"/receipts/in/key%3Aorder%2042%2F%C3%A9%3F/0?at=0:{at[1]}"
    assert email.utils.parsedate_to_datetime(first.headers["date"]).tzinfo is not None


def test_a_kept_connection_is_one_stream_in_order(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    for i in range(20):
        assert post(client, b"%d" % i)[0] == 202
    table = web.table()
    assert table.column("seq").to_pylist() == list(range(20))
    assert len(set(table.column("stream").to_pylist())) == 1


def test_pipelined_requests_are_answered_in_order(web: Edge) -> None:
    count = 500  # more than may wait at a time
    replies = parse_replies(raw(web, b"".join(request(b"%d" % i) for i in range(count))))
    assert [int(reply.body["id"].rpartition("/")[2]) for reply in replies] == list(range(count))
    assert web.payloads() == [b"%d" % i for i in range(count)]


def test_ndjson_is_one_message_a_line(web: Edge, client: http.client.HTTPConnection) -> None:
    code, reply = post(
        client, b'{"a":1}\n\n{"a":2}\r\n{"a":3}', content_type="application/x-ndjson"
    )
    assert (code, reply["count"]) == (202, 3)
    assert web.payloads() == [b'{"a":1}', b'{"a":2}', b'{"a":3}']


def test_length_prefixed_bodies_are_cut(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "mode": "length_prefixed"})
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    code, reply = post(client, struct.pack(">Q", 3) + b"abc" + struct.pack(">Q", 0))
    assert (code, reply["count"]) == (202, 2)
    code, reply = post(client, struct.pack(">Q", 3) + b"ab")
    assert code == 400
    assert web.payloads() == [b"abc", b""]


def test_a_body_over_the_size_of_a_frame_is_stored_whole(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    line = b"x" * 999 + b"\n"
    code, reply = post(client, line * 40_000, content_type="application/x-ndjson")
    assert (code, reply["count"]) == (202, 40_000)
    table = web.table()
    assert table.column("seq").to_pylist() == list(range(40_000))
    assert set(table.column("payload").to_pylist()) == {line[:-1]}


def test_interceptors_that_cut_decide_what_a_message_is(edge: Start) -> None:
    cut = [("separate", {"delimiter": ";"})]
    web = edge("receiver.http", interceptors=cut)
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"a;b\nc", content_type="application/x-ndjson")[1]["count"] == 2
    assert post(client, b"d", Idempotency_Key="one")[0] == 202
    assert post(client, b"e;f", Idempotency_Key="two")[0] == 400
    assert web.payloads() == [b"a", b"b\nc", b"d"]


def test_a_packed_body_is_taken_where_an_interceptor_unpacks_it(edge: Start) -> None:
    web = edge("receiver.http", interceptors=[("gzip", {})])
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    lines = gzip.compress(b"a\nb")
    packed = {"content_encoding": "gzip", "content_type": "application/x-ndjson"}
    assert post(client, lines, **packed)[1]["count"] == 2
    refused = ask(client, "POST", body=b"x", content_encoding="br")
    assert refused.code == 415
    assert refused.headers["accept-encoding"] == "gzip, identity, x-gzip"
    assert post(client, b"not gzip", content_encoding="gzip")[0] == 400
    assert web.payloads() == [b"a", b"b"]


CHUNKED = "transfer-encoding: chunked"


@pytest.mark.parametrize(
    "body",
    [
        b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
        b"00003;name=value;x\r\nabc\r\n2\r\nde\r\n0\r\nx-trailer: y\r\n\r\n",
        b"".join(b"1\r\n%c\r\n" % c for c in b"abcde") + b"0\r\n\r\n",
    ],
)
def test_chunked_bodies_are_put_together(web: Edge, body: bytes) -> None:
    first, second = parse_replies(raw(web, request(body, CHUNKED) + request(b"next")))
    assert first.code == second.code == 202
    assert web.payloads() == [b"abcde", b"next"]


@pytest.mark.parametrize(
    "body",
    [
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"x\r\n",
        b"\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"0\r\n0\r\n\r\n",
        b"-1\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabc\n0\r\n\r\n",
        b"1" * 16 + b"\r\n",
        b"1;" + b"x" * 5000 + b"\r\na\r\n0\r\n\r\n",
        b"0\r\n" + b"x: y\r\n" * 10_000 + b"\r\n",
    ],
)
def test_a_chunked_body_that_is_wrong_is_refused(web: Edge, body: bytes) -> None:
    (reply,) = parse_replies(raw(web, request(body, CHUNKED)))
    assert (reply.code, reply.headers["connection"]) == (400, "close")
    assert "not a chunked body" in reply.body["reason"]
    assert web.payloads() == []


# --- Connections -----------------------------------------------------------------------------------


def test_a_connection_ends_when_the_sender_says_so(web: Edge) -> None:
    replies = parse_replies(raw(web, request(b"a", "connection: close") + request(b"b")))
    assert [(reply.code, reply.headers["connection"]) for reply in replies] == [(202, "close")]
    assert web.payloads() == [b"a"]


def test_the_old_version_is_kept_alive_only_on_demand(web: Edge) -> None:
    old = "POST / HTTP/1.0"
    both = request(b"a", "connection: keep-alive", line=old) + request(b"b", line=old)
    replies = parse_replies(raw(web, both + request(b"c")))
    assert [reply.headers["connection"] for reply in replies] == ["keep-alive", "close"]
    assert web.payloads() == [b"a", b"b"]


def test_what_clients_do_that_means_nothing_is_overlooked(web: Edge) -> None:
    data = b"\r\n\r\n" + request(b"a")
    data += b"\r\n" + request(b"b", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c")
    data += request(b"c", line="POST http://x/?dest=far HTTP/1.1")
    replies = parse_replies(raw(web, data))
    assert [reply.code for reply in replies] == [202, 202, 202]
    assert web.payloads() == [b"a", b"b", b"c"]
    assert web.table().to_pylist()[2]["meta"] == [("dest", "far")]


def test_a_refused_request_does_not_end_its_connection(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "path": "/in"})
    data = request(b"x" * 5000) + request(b"ok", line="POST /in HTTP/1.1")
    assert [reply.code for reply in parse_replies(raw(web, data))] == [404, 202]
    assert web.payloads() == [b"ok"]


EXPECT = "expect: 100-continue"


def test_expect_continue_is_answered_before_the_body(web: Edge) -> None:
    with web.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(request(b"", EXPECT, "content-length: 2"))
        assert read_reply(answers).code == 100
        sock.sendall(b"ok")
        assert read_reply(answers).code == 202
    assert web.payloads() == [b"ok"]


def test_expect_continue_waits_for_its_turn(web: Edge) -> None:
    with web.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(request(b"first") + request(b"", EXPECT, "content-length: 2"))
        assert [read_reply(answers).code for _ in range(2)] == [202, 100]
        sock.sendall(b"ok")
        assert read_reply(answers).code == 202


def test_who_expects_is_refused_before_it_sends(web: Edge) -> None:
    for head, code in (
        (request(b"", EXPECT, "content-length: 99999999999"), 413),
        (request(b"", EXPECT, "content-length: 9", "content-encoding: br"), 415),
        (request(b"", EXPECT, "content-length: 9", line="PUT / HTTP/1.1"), 405),
        (request(b"", "expect: the-unexpected", "content-length: 9"), 417),
    ):
        with web.connect() as sock:
            sock.sendall(head)
            reply = read_reply(sock.makefile("rb"))
            assert (reply.code, reply.headers["connection"]) == (code, "close")


# --- Streams and keys ------------------------------------------------------------------------------


def test_an_idempotency_key_makes_one_message(
    web: Edge, client: http.client.HTTPConnection
) -> None:
    first = post(client, b"a", Idempotency_Key="k1")
    again = post(client, b"a", Idempotency_Key="k1")
    assert first[1]["id"] == again[1]["id"] == "in/key:k1/0"
    assert again[1]["repeats"] == 1
    assert web.payloads() == [b"a"]


def test_a_numbered_stream_drops_repeats_after_a_kill(edge: Start) -> None:
    web = edge("receiver.http")
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    named = {"Penstock_Stream": "s", "Penstock_Sequence": "0"}
    assert post(client, b"a", **named)[0] == 202
    web.kill()
    web.start()
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    assert post(client, b"a", **named)[1]["repeats"] == 1
    assert post(client, b"c", Penstock_Stream="s", Penstock_Sequence="2")[0] == 202
    assert post(client, b"b", Penstock_Stream="s", Penstock_Sequence="1")[0] == 409
    assert web.payloads() == [b"a", b"c"]


# --- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (request(line="GET / HTTP/1.1"), 405),
        (request(line="OPTIONS / HTTP/1.1"), 405),
        (request(b"", "content-length: 999999999999"), 413),
        (request(b"", "content-encoding: br"), 415),
        (request(b"{}", "content-type: application/cloudevents+avro"), 415),
        (request(b"", "x: " + "y" * 40_000), 431),
        (request(b"", *["a: b"] * 200), 431),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"nonsense\r\n\r\n", 400),
        (b"NONSENSE\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 505),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\nhost: b\r\ncontent-length: 1\r\n\r\na", 400),
        (b"POST / HTTP/1.1\nhost: x\ncontent-length: 1\n\na\r\n\r\n", 400),
        (request(b"ab", "content-length: 1", "content-length: 2"), 400),
        (request(b"ab", "content-length: +2"), 400),
        (request(b"ab", "content-length: 2", "transfer-encoding: chunked"), 400),
        (request(b"", "transfer-encoding: gzip, chunked"), 501),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (request(b"x", "idempotency-key: a", "penstock-stream: b"), 400),
        (request(b"x", "idempotency-key:  "), 400),
        (request(b"x", "idempotency-key: " + "k" * 300), 400),
        (request(b"x", "penstock-stream: b"), 400),
        (request(b"x", "penstock-sequence: 1"), 400),
        (request(b"x", "penstock-stream: ~b", "penstock-sequence: 1"), 400),
        (request(b"x", "idempotency-key: a", "content-type: application/x-ndjson"), 400),
        (request(b"\n\n", "content-type: application/x-ndjson"), 400),
        (request(b"x", line="POST /?penstock.at=t/0/0 HTTP/1.1"), 400),
        (request(b"x", line="POST /?" + "&".join("a" * 200) + " HTTP/1.1"), 400),
        (request(b"x", line="POST /?a=" + "b" * 30_000 + " HTTP/1.1"), 202),
    ],
)
def test_what_is_not_a_message_is_refused(web: Edge, data: bytes, code: int) -> None:
    (reply,) = parse_replies(raw(web, data))
    assert reply.code == code
    assert code == 202 or reply.body["reason"]
    assert len(web.payloads()) == (code == 202)


def test_head_gets_no_body(web: Edge) -> None:
    with web.connect() as sock:
        answers = sock.makefile("rb")
        sock.sendall(request(line="HEAD / HTTP/1.1") + request(b"next"))
        reply = read_reply(answers, headless=True)
        assert (reply.code, reply.headers["allow"]) == (405, "POST")
        assert int(reply.headers["content-length"]) > 0
        assert read_reply(answers).code == 202


def test_a_client_that_sends_too_much_gets_to_read_why(edge: Start) -> None:
    web = edge("receiver.http", {"bind": "127.0.0.1:0", "max_body_bytes": 1000})
    for chunks in (None, [b"x" * 65536] * 300):
        client = http.client.HTTPConnection(*web.host_port, timeout=30)
        body = b"x" * 20_000_000 if chunks is None else iter(chunks)
        client.request("POST", "/", body, encode_chunked=chunks is not None)
        assert client.getresponse().status == 413
    assert web.payloads() == []


def test_meta_comes_from_the_headers_that_are_named(edge: Start) -> None:
    options = {"bind": "127.0.0.1:0", "meta_headers": ["x-tenant", "x-meta-*"]}
    web = edge("receiver.http", options)
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    headers = {"X_Tenant": "t", "X_Meta_Colour": "red", "X_Other": "no"}
    assert post(client, b"x", "/?q=1", **headers)[0] == 202
    assert dict(web.table().to_pylist()[0]["meta"]) == {
        "q": "1",
        "x-tenant": "t",
        "x-meta-colour": "red",
    }


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
    refused = ask(client, "POST", body=b"x")
    assert (refused.code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert post(client, b"x", Authorization="Basic s3cret")[0] == 401
    assert post(client, b"x", Authorization="Bearer wrong")[0] == 401
    assert post(client, b"x", Authorization="Bearer s3cret")[0] == 202
    assert web.payloads() == [b"x"]


def test_counters_and_a_clean_stop(edge: Start) -> None:
    web = edge("receiver.http")
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    post(client, b"12345")
    stats = web.stats()
    assert stats["peers"]["in"]["out"] == stats["peers"]["in"]["recv"] == 1
    assert stats["peers"]["in"]["connections"] == 1
    assert stats["partitions"]["t/0"]["end"] == 1
    assert web.stop() == 0
    assert web.log.describe(web.topic).partitions[0].writer is None
