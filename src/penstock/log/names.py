"""Names of topics in their namespaces, checked before they become paths."""

from __future__ import annotations

from dataclasses import dataclass

from xxhash import xxh3_64_hexdigest

from penstock.config.names import DEFAULT_NAMESPACE, OWN_NAMESPACES, check_name
from penstock.limits import MAX_STREAM_NAME_BYTES

__all__ = ["DEFAULT_NAMESPACE", "TopicName", "check_name", "producer_name"]


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic in its namespace; written `namespace/topic`, or `topic` in the default one."""

    namespace: str
    topic: str

    def __post_init__(self) -> None:
        if self.namespace not in OWN_NAMESPACES:
            check_name("namespace", self.namespace)
        check_name("topic", self.topic)

    @classmethod
    def parse(cls, text: str) -> TopicName:
        namespace, slash, topic = text.rpartition("/")
        return cls(namespace if slash else DEFAULT_NAMESPACE, topic)

    def __str__(self) -> str:
        if self.namespace == DEFAULT_NAMESPACE:
            return self.topic
        return f"{self.namespace}/{self.topic}"


def producer_name(text: str) -> str:
    """A name that producers of rows may have: one made of several others may be too long."""
    if len(text.encode()) <= MAX_STREAM_NAME_BYTES:
        return text
    kept = text.encode()[: MAX_STREAM_NAME_BYTES - 17].decode(errors="ignore")
    return f"{kept}-{xxh3_64_hexdigest(text.encode())}"
