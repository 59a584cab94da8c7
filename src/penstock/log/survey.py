"""All topics at a glance. One that is damaged hides no other."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import LogError, NoSuchTopic
from penstock.log.interface import Log, TopicInfo
from penstock.log.names import TopicName


@dataclass(slots=True)
class Survey:
    topics: list[TopicInfo] = field(default_factory=list)
    damaged: list[tuple[TopicName, str]] = field(default_factory=list)  # and why


def survey(log: Log, namespace: str | None = None) -> Survey:
    """Describe every topic, or those of one namespace."""
    found = Survey()
    for name in log.topics(namespace):
        try:
            found.topics.append(log.describe(name))
        except NoSuchTopic:
            continue  # deleted between the two looks
        except (LogError, OSError) as error:
            found.damaged.append((name, str(error)))
    return found
