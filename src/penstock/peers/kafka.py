"""Kafka: a consumer; a producer with transactions. One stream a partition."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field, SecretStr

from penstock.config.options import Options, Texts
from penstock.config.registry import Kind, declare
from penstock.peers.options import DestinationOptions, ReceiverOptions


class KafkaOptions(Options):
    servers: Texts = Field(
        min_length=1, validation_alias=AliasChoices("servers", "bootstrap_servers")
    )
    """Brokers to ask first, `host:port`."""

    client: dict[str, SecretStr] = Field(default_factory=dict)
    """Settings of the Kafka client, by their own names: security, compression, timeouts."""


class KafkaSourceOptions(Options):
    topics: Texts = Field(min_length=1)
    """The Kafka topics to read."""

    start: Literal["beginning", "end"] = "end"
    """Where to begin the first time."""


class KafkaTargetOptions(Options):
    kafka_topic: str = Field(
        min_length=1, max_length=249, validation_alias=AliasChoices("kafka_topic", "topic")
    )
    """The Kafka topic to write."""

    key: Literal["message", "stream", "none"] = "message"
    """What a record's key is made of: the message's key, its stream, or nothing."""


@declare(Kind.RECEIVER, "kafka", "Reads Kafka topics.")
class KafkaReceiverOptions(KafkaOptions, KafkaSourceOptions, ReceiverOptions):
    pass


@declare(Kind.SINK, "kafka", "Writes a Kafka topic, exactly once by transactions.")
class KafkaSinkOptions(KafkaOptions, KafkaTargetOptions, DestinationOptions):
    pass


@declare(Kind.PEER, "kafka", "Reads Kafka topics and writes one.")
class KafkaPeerOptions(KafkaOptions, ReceiverOptions):
    receive: KafkaSourceOptions
    """What to read."""

    send: KafkaTargetOptions
    """What to write."""
