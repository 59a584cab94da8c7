"""Names of namespaces and topics, checked before they become paths."""

from __future__ import annotations

import re
from dataclasses import dataclass

from penstock.errors import InvalidName
from penstock.limits import MAX_NAME_CHARS

DEFAULT_NAMESPACE = "default"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
# `_system` holds Penstock's own topics; nobody else's name may begin with an underscore.
_OWN_NAMESPACES = frozenset({"_system"})


def check_name(kind: str, name: str) -> str:
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{kind} name {name[: MAX_NAME_CHARS + 1]!r}: use 1 to {MAX_NAME_CHARS} characters of a-z, "
            "0-9, '-', '_' and '.', beginning and ending with a letter or digit"
        )
    return name


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic in its namespace; written `namespace/topic`, or `topic` in the default one."""

    namespace: str
    topic: str

    def __post_init__(self) -> None:
        if self.namespace not in _OWN_NAMESPACES:
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
