"""A topic that has got more partitions: what is sent again is still known, and streams keep their order."""

from __future__ import annotations

import http.client
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from tests.cli.commands import penstock
from tests.edge.conftest import Edge
from tests.edge.http_client import ask, post
from tests.supervisor.running import ONE_RECEIVER, Run

KEYS = [f"order-{number}" for number in range(20)]


def stored(log: EmbeddedLog, topic: str) -> list[bytes]:
    name = TopicName.parse(topic)
    return [
        payload
        for partition in range(log.config(name).partitions)
        for batch in log.reader(name, partition).read(0)
        for payload in batch.column("payload").to_pylist()
    ]


def test_keys_and_streams_are_known_after_growth(edge: Callable[..., Edge]) -> None:
    web = edge("receiver.http")
    client = http.client.HTTPConnection(*web.host_port, timeout=30)
    places = {}
    for number, key in enumerate(KEYS):
        places[key] = ask(client, "POST", "/", key.encode(), Idempotency_Key=key).headers[
            "location"
        ]
        named = {"Penstock_Stream": f"till-{number}", "Penstock_Sequence": "0"}
        assert post(client, b"first", **named)[0] == 202
    web.stop()
    for partitions in (3, 8):
        assert web.log.create(web.topic, TopicConfig(partitions=partitions))
        assert web.log.homes(web.topic) == 1
        web.start()
        client = http.client.HTTPConnection(*web.host_port, timeout=30)
        for number, key in enumerate(KEYS):
            again = ask(client, "POST", "/", b"other", Idempotency_Key=key)
            assert (again.code, again.body["repeats"]) == (202, 1)
            assert again.headers["location"] == places[key]
            named = {"Penstock_Stream": f"till-{number}", "Penstock_Sequence": "0"}
            assert post(client, b"first", **named)[1]["repeats"] == 1
            receipt = ask(client, "GET", places[key].partition("?")[0])
            assert receipt.code == 200, "it is found without its place, too"
        web.stop()
    assert sorted(stored(web.log, "t")) == sorted([b"first"] * 20 + [key.encode() for key in KEYS])


def test_new_partitions_take_the_streams_of_connections(edge: Callable[..., Edge]) -> None:
    web = edge("receiver.http")
    web.stop()
    web.log.create(web.topic, TopicConfig(partitions=4))
    web.start()
    for _ in range(40):
        client = http.client.HTTPConnection(*web.host_port, timeout=30)
        assert post(client, b"x")[0] == 202
        client.close()
    ends = [web.log.reader(web.topic, partition).end() for partition in range(4)]
    assert sum(ends) == 40
    assert sum(end > 0 for end in ends) > 1


def test_send_meets_its_own_stream_after_growth(tmp_path: Path) -> None:
    assert penstock("topics", "create", "t", cwd=tmp_path).code == 0
    for number in range(4):
        assert penstock("send", "t", "x", "--stream", f"s{number}", cwd=tmp_path).code == 0
    assert penstock("topics", "create", "t", "-p", "8", cwd=tmp_path).code == 0
    for number in range(4):
        again = penstock("send", "t", "x", "--stream", f"s{number}", cwd=tmp_path)
        assert "1 were there already" in again.out
    assert stored(EmbeddedLog(tmp_path / ".penstock"), "t") == [b"x"] * 4


@pytest.mark.slow
def test_more_processes_know_what_one_has_stored(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER)
    for processes in ("1", "2"):
        with Run(flow, "--maxprocs", processes) as run:
            run.wait_ready()
            for key in KEYS:
                client = http.client.HTTPConnection(run.addresses["web"], timeout=60)
                code, body = post(client, key.encode(), Idempotency_Key=key)
                assert (code, body.get("repeats", 0)) == (202, int(processes) - 1)
                client.close()
            assert run.stop() == 0
    log = EmbeddedLog(tmp_path / ".penstock")
    assert log.config(TopicName.parse("orders.web")).partitions == 2
    assert sorted(stored(log, "orders.web")) == sorted(key.encode() for key in KEYS)
