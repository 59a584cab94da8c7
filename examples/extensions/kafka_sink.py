"""A Kafka topic as a sink, exactly once.

    python kafka_sink.py --servers 127.0.0.1:9092 --topic orders --folder state --port 7200

and in the flow file:

    orders: {module: sink.connector, params: {address: "127.0.0.1:7200"}}

A Kafka transaction cannot be prepared by one process and committed by another, so the messages are kept by the sink
itself until Penstock has decided, and go to Kafka in `deliver`. Told twice of the same round, which happens if the
program was killed in between, it must know that: each Kafka transaction also writes which round it was, by worker, to the
topic `TOPIC.delivered`, and a new program reads that first. Rounds end later and later, unless all their payloads are empty:
so the transaction counts too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.sdk import Round, TwoPhaseSink

TIMEOUT_S = 60.0


class KafkaSink(TwoPhaseSink):
    def __init__(self, folder: Path | str, servers: str, topic: str) -> None:
        super().__init__(folder)
        self.topic = topic
        self.delivered_topic = f"{topic}.delivered"
        self.servers = {"bootstrap.servers": servers}
        self._make_topic()
        # A new producer with the same id ends what the one before it left open, and fences it.
        self.producer = Producer({**self.servers, "transactional.id": f"penstock.{topic}"})
        self.producer.init_transactions(TIMEOUT_S)
        self.delivered = self._read_delivered()  # by worker: its last round's end and id

    def deliver(self, messages: Round) -> None:
        txn = messages.transaction
        end, last = self.delivered.get(txn.worker, (0, ""))
        if end > txn.end or last == txn.id:
            return
        self.producer.begin_transaction()
        try:
            for message in messages:
                self._produce(message.payload or b"", message.key)
            round_ = f"{txn.end} {txn.id}".encode()
            self.producer.produce(self.delivered_topic, round_, txn.worker.encode())
            self.producer.commit_transaction(TIMEOUT_S)
        except BaseException:
            self.producer.abort_transaction(TIMEOUT_S)
            raise
        self.delivered[txn.worker] = txn.end, txn.id

    def _produce(self, payload: bytes, key: bytes | None) -> None:
        while True:
            try:
                return self.producer.produce(self.topic, payload, key)
            except BufferError:  # full: let some go out first
                self.producer.poll(1.0)

    def _make_topic(self) -> None:
        config = {"cleanup.policy": "compact"}
        topic = NewTopic(self.delivered_topic, num_partitions=1, config=config)
        admin = AdminClient(self.servers)
        made = admin.create_topics([topic])[self.delivered_topic]
        try:
            made.result(TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _read_delivered(self) -> dict[str, tuple[int, str]]:
        consumer = Consumer(
            {
                **self.servers,
                "group.id": f"penstock.{self.topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(self.delivered_topic, 0, 0)])
        found: dict[str, tuple[int, str]] = {}
        try:
            while True:
                message = consumer.poll(TIMEOUT_S)
                if message is None:
                    raise TimeoutError(f"{self.delivered_topic} cannot be read")
                if (error := message.error()) is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return found
                    raise KafkaException(error)
                end, _, txn = message.value().decode().partition(" ")
                found[message.key().decode()] = int(end), txn
        finally:
            consumer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--port", type=int, default=7200)
    options = parser.parse_args()
    with KafkaSink(options.folder, options.servers, options.topic) as sink:
        sink.serve("127.0.0.1", options.port)


if __name__ == "__main__":
    main()
