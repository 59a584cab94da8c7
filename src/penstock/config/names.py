"""The rule for names that become folders and topics: flows, namespaces, topics."""

from __future__ import annotations

import re

from penstock.errors import InvalidName
from penstock.limits import MAX_NAME_CHARS

DEFAULT_NAMESPACE = "default"

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
# `_system` holds Penstock's own topics; nobody else's name may begin with an underscore.
OWN_NAMESPACES = frozenset({"_system"})


def check_name(kind: str, name: str) -> str:
    """The name, or InvalidName that says what is allowed."""
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{kind} name {name[: MAX_NAME_CHARS + 1]!r}: use 1 to {MAX_NAME_CHARS} characters of "
            "a-z, 0-9, '-', '_' and '.', beginning and ending with a letter or digit"
        )
    return name


def check_topic(text: str) -> str:
    """A topic as it is written: `topic`, or `namespace/topic`."""
    namespace, slash, topic = text.rpartition("/")
    if slash and namespace not in OWN_NAMESPACES:
        check_name("namespace", namespace)
    check_name("topic", topic)
    return text


def name_from(text: str) -> str:
    """The nearest valid name: a file's stem made fit to name a flow. Empty if nothing is left."""
    fit = re.sub(r"[^a-z0-9._-]+", "-", text.lower())
    return fit.strip("._-")[:MAX_NAME_CHARS].strip("._-")
