"""The admin API of a running flow: what each operation answers, and what it refuses."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import orjson
import pytest

from penstock.limits import MAX_ADMIN_BODY_BYTES
from tests.supervisor.running import WAIT_S, Run, eventually, metric, request

pytestmark = pytest.mark.slow


def create(flow: Run, topic: str, **settings: Any) -> tuple[int, Any]:
    body = orjson.dumps({"topic": topic, **settings})
    return request(
        flow.addresses["admin"], "POST", "/topics", body, {"Content-Type": "application/json"}
    )


def headers_of(flow: Run, method: str, path: str) -> tuple[int, dict[str, str], Any]:
    connection = http.client.HTTPConnection(flow.addresses["admin"], timeout=WAIT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        return response.status, {k.lower(): v for k, v in response.getheaders()}, body
    finally:
        connection.close()


# --- The flow ------------------------------------------------------------------------------------


def test_health_names_every_process(flow: Run) -> None:
    eventually(lambda: flow.processes()["keeper"]["state"] == "ready", "the keeper is up")
    status, health = flow.call("GET", "/health")
    assert (status, health["status"], health["flow"]) == (200, "ok", "orders")
    assert [process["name"] for process in health["processes"]] == ["edge-0", "keeper"]
    assert all(process["state"] == "ready" for process in health["processes"])


def test_metrics_count_what_was_posted(flow: Run) -> None:
    before = flow.call("GET", "/metrics")[1]
    for _ in range(3):
        flow.post(b"12345")
    after = flow.call("GET", "/metrics")[1]

    def grown(name: str, **labels: str) -> float:
        return metric(after, name, **labels) - metric(before, name, **labels)

    assert grown("penstock_peer_recv_total", flow="orders", peer="web") == 3
    assert grown("penstock_peer_out_total", flow="orders", peer="web") == 3
    assert grown("penstock_peer_recv_bytes_total", peer="web") == 15
    assert grown("penstock_peer_in_total", peer="web") == 0
    assert grown("penstock_topic_end_offset", topic="orders.web", partition="0") == 3
    assert grown("penstock_log_bytes_total", topic="orders.web") > 15
    assert 1 <= grown("penstock_log_fsync_seconds_count", topic="orders.web") <= 3
    assert metric(after, "penstock_log_lag_messages") == 0
    assert metric(after, "penstock_log_pending_bytes") == 0
    assert metric(after, "penstock_process_resident_memory_bytes", process="edge-0") > 1e6
    inf = metric(after, "penstock_log_fsync_seconds_bucket", le="+Inf")
    assert inf == metric(after, "penstock_log_fsync_seconds_count")


def test_metrics_are_served_as_prometheus_reads_them(flow: Run) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    _, headers, body = headers_of(flow, "GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=")
    names = {family.name for family in text_string_to_metric_families(body.decode())}
    assert {"penstock_peer_recv", "penstock_log_fsync_seconds", "penstock_process_up"} <= names


# --- Topics --------------------------------------------------------------------------------------


def test_a_topic_is_created_described_and_deleted(flow: Run) -> None:
    settings = {"partitions": 3, "compression": "zstd", "retention": {"age_s": 3600.0}}
    status, made = create(flow, "fresh", namespace="shop", **settings)
    assert status == 201
    assert made["config"]["compression"] == "zstd"
    assert made["config"]["retention"] == {"age_s": 3600.0, "size_bytes": None}
    assert flow.call("GET", "/topics/shop/fresh") == (200, made)
    listed = flow.call("GET", "/topics?namespace=shop")[1]["topics"]
    assert [(topic["topic"], topic["partitions"]) for topic in listed] == [("fresh", 3)]
    assert flow.call("DELETE", "/topics/shop/fresh?confirm=shop/fresh") == (204, "")
    assert flow.call("GET", "/topics/shop/fresh")[0] == 404


def test_creating_the_same_again_changes_nothing_and_another_is_a_conflict(flow: Run) -> None:
    assert create(flow, "twice", partitions=2)[0] == 201
    assert create(flow, "twice", partitions=2)[0] == 200
    assert create(flow, "twice", partitions=4)[0] == 201
    status, problem = create(flow, "twice", partitions=1)
    assert (status, problem["status"]) == (409, 409)
    assert "may only grow" in problem["detail"]
    status, problem = create(flow, "twice", ids="producer")
    assert (status, problem["status"]) == (409, 409)
    assert create(flow, "twice")[0] == 200


def test_settings_of_a_topic_change_and_those_not_given_stay(flow: Run) -> None:
    assert create(flow, "kept", partitions=2, retention={"age_s": 60.0})[0] == 201
    status, changed = create(flow, "kept", compression="lz4", segment_age_s=60.0)
    assert status == 201
    config = changed["config"]
    assert (config["partitions"], config["compression"], config["segment_age_s"]) == (2, "lz4", 60)
    assert config["retention"] == {"age_s": 60.0, "size_bytes": None}
    assert create(flow, "kept", retention={})[1]["config"]["retention"]["age_s"] is None


def test_a_topic_that_is_written_is_not_deleted(flow: Run) -> None:
    status, problem = flow.call("DELETE", "/topics/default/orders.web?confirm=orders.web")
    assert status == 409
    assert f"process {flow.pid('edge-0')}" in problem["detail"]
    assert flow.call("GET", "/topics/default/orders.web")[0] == 200


@pytest.mark.parametrize("query", ["?confirm=other", "?confirm=", "?confirm=DEFAULT/kept"])
def test_deleting_needs_the_name_again(flow: Run, query: str) -> None:
    create(flow, "kept")
    assert flow.call("DELETE", f"/topics/default/kept{query}")[0] == 409
    assert flow.call("DELETE", "/topics/default/kept")[0] == 422
    assert flow.call("GET", "/topics/default/kept")[0] == 200


def test_messages_are_shown_as_tail_shows_them(flow: Run) -> None:
    event = flow.post(b'{"n": 1}')
    end = flow.call("GET", "/topics/default/orders.web")[1]["partitions"][0]["end"]
    path = f"/topics/default/orders.web/messages?partition=0&offset={end - 1}"
    status, page = flow.call("GET", path)
    (message,) = page["messages"]
    peer, stream, seq = event.split("/")
    assert status == 200
    assert message["id"] == {"peer": peer, "stream": stream, "seq": int(seq)}
    assert (message["payload"], message["key"], message["offset"]) == ('{"n": 1}', None, end - 1)
    assert "encoding" not in message
    assert (page["next_offset"], page["end"], page["corrupt"]) == (end, end, [])


def test_payloads_that_are_no_text_are_base64(flow: Run) -> None:
    flow.post(b"\xff\xfe")
    end = flow.call("GET", "/topics/default/orders.web")[1]["partitions"][0]["end"]
    page = flow.call("GET", f"/topics/default/orders.web/messages?offset={end - 1}")[1]
    assert page["messages"][0]["payload"] == "//4="
    assert page["messages"][0]["encoding"] == "base64"


def test_pages_follow_each_other_without_gap_or_repeat(flow: Run) -> None:
    for number in range(7):
        flow.post(b"page %d" % number)
    end = flow.call("GET", "/topics/default/orders.web")[1]["partitions"][0]["end"]
    seen: list[int] = []
    offset = 0
    while offset < end:
        page = flow.call("GET", f"/topics/default/orders.web/messages?offset={offset}&limit=3")[1]
        assert 0 < len(page["messages"]) <= 3
        seen += [message["offset"] for message in page["messages"]]
        offset = page["next_offset"]
    assert seen == list(range(end))


def test_past_the_end_there_is_nothing_and_reading_goes_on_there(flow: Run) -> None:
    page = flow.call("GET", "/topics/default/orders.web/messages?offset=1000000")[1]
    assert (page["messages"], page["next_offset"]) == ([], 1_000_000)


# --- Receipts ------------------------------------------------------------------------------------


def test_a_message_is_new_while_nobody_has_settled_it(flow: Run) -> None:
    event = flow.post(b"x")
    assert flow.call("GET", f"/receipts/{event}") == (200, {"id": event, "status": "new"})
    status, problem = flow.call("GET", f"/receipts/{event}?at=0:999999")
    assert (status, problem["status"]) == (404, 404)
    assert "no message" in problem["detail"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/receipts/web/~000000000000000000aa/0", 404),
        ("/receipts/nobody/till/0", 404),
        ("/receipts/web/till/-1", 422),
        ("/receipts/web/till/x", 422),
        ("/receipts/web/till/0?at=x", 422),
        ("/receipts/web/0", 404),
        ("/receipts/web/" + "s" * 300 + "/0", 422),
    ],
)
def test_receipts_of_nothing_are_not_there(flow: Run, path: str, status: int) -> None:
    assert flow.call("GET", path)[0] == status


# --- Bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/default/nothing", 404),
        ("/topics/default/nothing/messages", 404),
        ("/topics/default/orders.web/messages?partition=7", 404),
        ("/topics/default/orders.web/messages?partition=-1", 422),
        ("/topics/default/orders.web/messages?partition=99999999999999999999", 422),
        ("/topics/default/orders.web/messages?offset=abc", 422),
        ("/topics/default/orders.web/messages?limit=0", 422),
        ("/topics/default/orders.web/messages?limit=1001", 422),
        ("/topics/default/orders.web/messages?unknown=1", 422),
        ("/topics/default/UPPER", 422),
        ("/topics/..%2f..%2fetc/passwd", 404),
        ("/topics/default/..", 422),
        ("/topics/default/%00", 422),
        ("/topics/default/%ff%fe", 422),
        ("/topics/default/" + "a" * 101, 422),
        ("/topics/_other/x", 422),
        ("/topics?namespace=..", 422),
        ("/topics?namespace=", 422),
        ("/nothing", 404),
        ("/health/", 404),
    ],
)
def test_wrong_requests_are_answered_with_a_problem(flow: Run, path: str, status: int) -> None:
    got, headers, body = headers_of(flow, "GET", path)
    problem = orjson.loads(body)
    assert got == status
    assert headers["content-type"] == "application/problem+json"
    assert (problem["status"], problem["type"]) == (status, "about:blank")
    assert problem["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"{}",
        b'{"topic": 1}',
        b'{"topic": "x", "partitions": 0}',
        b'{"topic": "x", "partitions": 1025}',
        b'{"topic": "x", "partitions": 1e400}',
        b'{"topic": "x", "partitions": true}',
        b'{"topic": "x", "unknown": 1}',
        b'{"topic": "x", "compression": "gzip"}',
        b'{"topic": "x\\n"}',
        b'{"topic": "X"}',
        b'{"topic": ".."}',
        b'{"topic": "x", "namespace": "_system"}',
        b'{"topic": "x", "retention": {"age_s": -1}}',
        b'{"topic": "x", "retention": {"age_s": NaN}}',
        b'{"topic": "x", "ids": "producer", "partitions": 2}',
        b"[" * 10_000,
    ],
)
def test_wrong_topics_are_not_created(flow: Run, body: bytes) -> None:
    json = {"Content-Type": "application/json"}
    status, problem = request(flow.addresses["admin"], "POST", "/topics", body, json)
    # 400 is for what cannot be read at all.
    assert status == (400 if body[:2] in (b"\xff", b"[[") else 422), problem
    assert problem["status"] == status
    assert flow.call("GET", "/topics/default/x")[0] == 404


def test_every_part_that_is_wrong_is_named(flow: Run) -> None:
    _, problem = create(flow, "x", partitions=0, compression="gzip")
    assert {part["where"] for part in problem["errors"]} == {"body.partitions", "body.compression"}


def test_a_form_cannot_create_topics(flow: Run) -> None:
    """A web page may send this without asking first; JSON it may not."""
    body = b'{"topic": "by-a-page"}'
    text = {"Content-Type": "text/plain"}
    assert request(flow.addresses["admin"], "POST", "/topics", body, text)[0] == 422
    assert flow.call("GET", "/topics/default/by-a-page")[0] == 404


def test_allow_names_the_methods_of_every_operation_at_a_path(flow: Run) -> None:
    for path, allowed in (
        ("/topics", {"GET", "POST"}),
        ("/topics/default/x", {"DELETE", "GET"}),
        ("/health", {"GET"}),
    ):
        status, headers, _ = headers_of(flow, "PUT", path)
        assert status == 405
        assert set(headers["allow"].split(", ")) == allowed


def test_a_number_too_large_for_json_readers_is_refused(flow: Run) -> None:
    body = {"retention": {"size_bytes": 2**63 + 1}}
    assert create(flow, "huge", **body)[0] == 422


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused(flow: Run, chunked: bool) -> None:
    connection = http.client.HTTPConnection(flow.addresses["admin"], timeout=WAIT_S)
    body = b" " * (MAX_ADMIN_BODY_BYTES + 1)
    connection.request(
        "POST",
        "/topics",
        iter([body]) if chunked else body,
        {"Content-Type": "application/json"},
        encode_chunked=chunked,
    )
    response = connection.getresponse()
    assert response.status == 413
    assert orjson.loads(response.read())["status"] == 413
    connection.close()


# --- Who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8080", 200),
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 400),
    ],
)
def test_a_name_that_could_be_rebound_is_refused(flow: Run, host: str, status: int) -> None:
    got, _ = request(flow.addresses["admin"], "GET", "/health", headers={"Host": host})
    assert got == status


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://["]
)
def test_a_page_of_another_site_is_refused(flow: Run, origin: str) -> None:
    got, problem = request(flow.addresses["admin"], "GET", "/health", headers={"Origin": origin})
    assert got == 403
    assert "Origin" in problem["detail"]


def test_a_page_of_its_own_may_ask(flow: Run) -> None:
    origin = f"http://{flow.addresses['admin']}"
    headers = {"Origin": origin}
    assert request(flow.addresses["admin"], "GET", "/health", headers=headers)[0] == 200


def test_what_is_not_http_does_no_harm(flow: Run) -> None:
    host, _, port = flow.addresses["admin"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as sock:
        sock.sendall(b"\x16\x03\x01\x00\xff" * 100 + b"\r\n\r\n")
        sock.shutdown(socket.SHUT_WR)
        answer = sock.recv(65536)
    assert not answer.startswith(b"HTTP/1.1 5")
    assert flow.call("GET", "/health")[0] == 200
