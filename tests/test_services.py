"""The servers that other tests talk to are real, and keep what they are told."""

from __future__ import annotations

import psycopg
import redis
from confluent_kafka import Consumer, Producer


def test_redis_keeps_a_stream(redis_port: int) -> None:
    with redis.Redis(port=redis_port) as client:
        client.xadd("test.services", {"n": 1})
        [(_, entries)] = client.xread({"test.services": "0"})  # type: ignore[misc]
    assert [fields for _, fields in entries] == [{b"n": b"1"}]


def test_postgres_prepares_and_commits(postgres_port: int) -> None:
    where = f"host=127.0.0.1 port={postgres_port} user=postgres"
    with psycopg.connect(where, autocommit=True) as db:
        db.execute("CREATE TABLE test_services (n int)")
        db.execute("BEGIN")
        db.execute("INSERT INTO test_services VALUES (1)")
        db.execute("PREPARE TRANSACTION 'one'")
    with psycopg.connect(where, autocommit=True) as db:
        before = db.execute("SELECT count(*) FROM test_services").fetchall()
        db.execute("COMMIT PREPARED 'one'")
        after = db.execute("SELECT count(*) FROM test_services").fetchall()
        db.execute("DROP TABLE test_services")
    assert (before, after) == ([(0,)], [(1,)])


def test_kafka_commits_a_transaction(kafka_port: int) -> None:
    servers = {"bootstrap.servers": f"127.0.0.1:{kafka_port}"}
    producer = Producer({**servers, "transactional.id": "test.services"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("test.services", b"kept")
    producer.commit_transaction(60)
    consumer = Consumer(
        {**servers, "group.id": "test", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.subscribe(["test.services"])
    found = None
    for _ in range(60):
        found = consumer.poll(1.0)
        if found is not None and found.error() is None:
            break
    consumer.close()
    assert found is not None
    assert found.value() == b"kept"
