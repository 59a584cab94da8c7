"""The sources among the examples, against real servers: what they send is stored once, in order."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.edge.conftest import Edge

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"
Start = Callable[..., Edge]


def start(name: str, edge: Edge, *options: str) -> subprocess.Popen[bytes]:
    port = str(edge.host_port[1])
    return subprocess.Popen([sys.executable, str(EXAMPLES / name), *options, "--port", port])


@pytest.fixture
def receiver(edge: Start) -> Edge:
    return edge("receiver.connector", {"bind": "127.0.0.1:0"})


def stored(edge: Edge, stream: str) -> list[bytes]:
    table = edge.table()
    rows = zip(table["meta"].to_pylist(), table["payload"].to_pylist(), strict=True)
    return [payload for meta, payload in rows if ("stream_name", stream) in meta]


@pytest.mark.slow
def test_a_kafka_topic_arrives_once_though_the_program_is_killed(
    receiver: Edge, kafka_port: int
) -> None:
    servers = f"127.0.0.1:{kafka_port}"
    producer = Producer({"bootstrap.servers": servers})
    wanted: dict[int, list[bytes]] = {0: [], 1: []}
    for number in range(40_000):
        payload = f"message {number}".encode()
        producer.produce("example-source", payload, partition=number % 2)
        wanted[number % 2].append(payload)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0

    source = ("--servers", servers, "--topic", "example-source")
    program = start("kafka_source.py", receiver, *source)
    assert receiver.wait_for(1)
    program.kill()
    program.wait()

    again = start("kafka_source.py", receiver, *source, "--to-the-end")
    assert again.wait(120) == 0
    for partition, payloads in wanted.items():
        assert stored(receiver, f"example-source/{partition}") == payloads


@pytest.mark.slow
def test_a_kafka_topic_is_read_from_where_it_begins_and_a_hole_is_an_error(
    receiver: Edge, kafka_port: int
) -> None:
    servers = f"127.0.0.1:{kafka_port}"
    producer, admin = (kind({"bootstrap.servers": servers}) for kind in (Producer, AdminClient))
    source = ("--servers", servers, "--topic", "example-hole", "--to-the-end")

    def produce(numbers: range) -> None:
        for number in numbers:
            producer.produce("example-hole", b"%d" % number, partition=0)
        assert producer.flush(60) == 0

    def delete(before: int) -> None:
        for gone in admin.delete_records([TopicPartition("example-hole", 0, before)]).values():
            assert gone.result(60).low_watermark == before

    produce(range(10))
    delete(4)
    assert start("kafka_source.py", receiver, *source).wait(120) == 0
    assert stored(receiver, "example-hole/0") == [b"%d" % number for number in range(4, 10)]
    produce(range(10, 20))
    delete(15)
    assert start("kafka_source.py", receiver, *source).wait(120) == 1
    assert len(stored(receiver, "example-hole/0")) == 6


def test_what_is_published_on_redis_arrives_in_order(receiver: Edge, redis_port: int) -> None:
    where = ("--redis", f"127.0.0.1:{redis_port}", "--channel", "example.news")
    program = start("redis_source.py", receiver, *where)
    with redis.Redis(port=redis_port) as client:
        while not client.publish("example.news", "hello"):  # nobody listens yet
            assert program.poll() is None
            time.sleep(0.05)
        for number in range(500):
            client.publish("example.news", f"news {number}")
    receiver.wait_for(501)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 0
    expected = [b"hello", *(f"news {number}".encode() for number in range(500))]
    assert stored(receiver, "example.news") == expected
