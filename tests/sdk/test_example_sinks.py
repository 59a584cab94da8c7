"""The sinks among the examples hold every message once, against real servers, with kills in between."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from confluent_kafka import Consumer, KafkaError, TopicPartition

from penstock.sinks.interface import SinkUnavailable
from tests.sdk.workers import TIMEOUT_S, TestWorker
from tools.services import free_port

EXAMPLES = Path(__file__).parents[2] / "examples" / "extensions"


class Program:
    """One of the examples, as a process that can be killed and started again."""

    def __init__(self, name: str, folder: Path, *options: str) -> None:
        self.port = free_port()
        common = ["--folder", str(folder), "--port", str(self.port)]
        self.command = [sys.executable, str(EXAMPLES / name), *options, *common]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(self.command)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.start()


@contextmanager
def running(program: Program) -> Iterator[Program]:
    program.start()
    try:
        yield program
    finally:
        program.kill()


def drill(program: Program, seen: Callable[[], list[bytes]]) -> None:
    """Rounds that are committed, rolled back, and cut off at the worst moments."""
    worker = TestWorker(("127.0.0.1", program.port))
    connected(worker).close()
    assert worker.round("t1", b"one", b"two")
    assert worker.round("t2", b"never", commit=False)
    assert worker.round("empty", b"", b"")
    before = [b"one", b"two", b"", b""]
    assert seen() == before

    # Killed after its vote: nothing is seen before the decision, all of it afterwards.
    link = connected(worker)
    assert worker.vote(link, "t3", b"three", b"four")
    program.restart()
    link.drop()
    worker.decided["t3"] = True
    worker.offset += len(b"threefour")
    connected(worker).close()
    before += [b"three", b"four"]
    assert seen() == before

    # Killed after its vote, and rolled back.
    link = connected(worker)
    assert worker.vote(link, "t4", b"not this")
    program.restart()
    link.drop()
    connected(worker).close()

    # A second worker in a transaction of the same name is another part of it.
    other = TestWorker(("127.0.0.1", program.port), "other")
    ours, theirs = connected(worker), connected(other)
    assert worker.vote(ours, "t5", b"five")
    assert other.vote(theirs, "t5", b"six")
    ours.tell("t5", True, TIMEOUT_S)
    theirs.tell("t5", True, TIMEOUT_S)
    program.restart()  # perhaps while it delivers
    ours.drop()
    theirs.drop()
    worker.decided["t5"] = other.decided["t5"] = True
    connected(worker).close()
    connected(other).close()
    assert sorted(seen()) == sorted([*before, b"five", b"six"])


def connected(worker: TestWorker) -> Any:
    """A link, once the program is up again; it has settled what the sink asked about."""
    for _ in range(600):
        try:
            return worker.link()
        except SinkUnavailable:
            time.sleep(0.1)
    raise AssertionError("the program does not come up")


def test_postgres_has_every_row_once(tmp_path: Path, postgres_port: int) -> None:
    dsn = f"host=127.0.0.1 port={postgres_port} user=postgres"
    program = Program("postgres_sink.py", tmp_path, "--dsn", dsn, "--table", "example_orders")

    def seen() -> list[bytes]:
        with psycopg.connect(dsn) as database:
            rows = database.execute("SELECT payload FROM example_orders ORDER BY id").fetchall()
            [(staged,)] = database.execute("SELECT count(*) FROM staged").fetchall()
        assert staged == 0
        return [payload for (payload,) in rows]

    with running(program):
        drill(program, seen)


def test_redis_has_every_element_once(tmp_path: Path, redis_port: int) -> None:
    where = f"127.0.0.1:{redis_port}"
    program = Program("redis_sink.py", tmp_path, "--redis", where, "--list", "example.orders")

    def seen() -> list[bytes]:
        with redis.Redis(port=redis_port) as client:
            assert client.keys("example.orders:staged:*") == []
            found: Any = client.lrange("example.orders", 0, -1)
            return list(found)

    with running(program):
        drill(program, seen)


@pytest.mark.slow
def test_kafka_has_every_message_once(tmp_path: Path, kafka_port: int) -> None:
    servers = f"127.0.0.1:{kafka_port}"
    program = Program("kafka_sink.py", tmp_path, "--servers", servers, "--topic", "example-orders")
    with running(program):
        drill(program, lambda: committed(servers, "example-orders"))


def committed(servers: str, topic: str) -> list[bytes]:
    """All that a reader sees who asks for committed messages only."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "test",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = list(consumer.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, one, 0) for one in partitions])
    found, ended = [], set()
    while len(ended) < len(partitions):
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF
            ended.add(message.partition())
    consumer.close()
    return found
