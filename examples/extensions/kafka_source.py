"""Kafka topics as a source, exactly once.

    python kafka_source.py --servers 127.0.0.1:9092 --topic orders --port 7100

and in the flow file:

    orders: {module: receiver.connector, params: {bind: "127.0.0.1:7100"}}

A partition of Kafka is a partition here, an offset is a sequence number. So Penstock knows how far each
partition has come, and no offset is committed to Kafka: a program that starts again asks Penstock and reads on from there. Of
a partition that Penstock does not know, it reads all that Kafka still has.
"""

from __future__ import annotations

import argparse
import signal
from collections import defaultdict
from types import FrameType

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from penstock.sdk import Outgoing, SourceExtension, message_encoder

TIMEOUT_S = 60.0
READ_AT_ONCE = 10_000


@message_encoder
def encode(message: Message) -> Outgoing:
    _, time_ms = message.timestamp()
    return Outgoing(message.value() or b"", message.key(), time_ms * 1_000_000)


class KafkaSource:
    def __init__(self, servers: str, topic: str, *, to_the_end: bool = False) -> None:
        self.topic = topic
        self.to_the_end = to_the_end
        self.stopped = False
        self.consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "penstock",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # Where to begin is known. If that is gone from the topic, to go on elsewhere loses messages.
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
            }
        )

    def run(self, penstock: SourceExtension) -> None:
        topics = self.consumer.list_topics(self.topic, TIMEOUT_S).topics
        partitions = sorted(topics[self.topic].partitions)
        begins = {one: penstock.point_of_reference(self.name(one)) for one in partitions}
        self.consumer.assign(
            [
                TopicPartition(self.topic, one, OFFSET_BEGINNING if last is None else last + 1)
                for one, last in begins.items()
            ]
        )
        ended: set[int] = set()
        while not self.stopped and not (self.to_the_end and ended == set(partitions)):
            found: dict[int, list[Message]] = defaultdict(list)
            for message in self.consumer.consume(READ_AT_ONCE, timeout=0.5):
                error = message.error()
                if error is None:
                    found[message.partition()].append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise SystemExit(
                        f"{self.topic}: Kafka has deleted messages that Penstock does not have yet: {error}"
                    )
                else:
                    raise KafkaException(error)
            for partition, messages in found.items():
                offsets = [message.offset() for message in messages]
                penstock.write_many(messages, self.name(partition), offsets)
        self.consumer.close()

    def name(self, partition: int) -> str:
        return f"{self.topic}/{partition}"

    def stop(self, _signal: int, _frame: FrameType | None) -> None:
        self.stopped = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7100)
    parser.add_argument("--to-the-end", action="store_true", help="end where the topic ends")
    options = parser.parse_args()
    source = KafkaSource(options.servers, options.topic, to_the_end=options.to_the_end)
    signal.signal(signal.SIGTERM, source.stop)
    signal.signal(signal.SIGINT, source.stop)
    # Leaving waits until Penstock has all of it.
    with SourceExtension(encode, program="kafka").connect(options.host, options.port) as penstock:
        source.run(penstock)


if __name__ == "__main__":
    main()
