"""Topics: durable, partitioned, append-only logs of messages, behind one interface."""

from penstock.log.interface import (
    SCHEMA,
    Appended,
    Log,
    Reader,
    Retention,
    TopicConfig,
    TopicInfo,
    Writer,
)
from penstock.log.names import DEFAULT_NAMESPACE, TopicName

__all__ = [
    "DEFAULT_NAMESPACE",
    "SCHEMA",
    "Appended",
    "Log",
    "Reader",
    "Retention",
    "TopicConfig",
    "TopicInfo",
    "TopicName",
    "Writer",
]
