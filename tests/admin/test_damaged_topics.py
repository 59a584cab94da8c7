"""What the admin API says of topics that are damaged."""

from __future__ import annotations

import os
from pathlib import Path

from fastapi.routing import APIRoute

from penstock.admin.models import ListQuery
from penstock.admin.topics import router
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog


def test_a_damaged_topic_hides_no_other(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    for name in ("apples", "orders", "zebras"):
        log.create(TopicName("default", name), TopicConfig())
    os.truncate(tmp_path / "topics/default/orders/topic.json", 0)
    routes = [route for route in router(log).routes if isinstance(route, APIRoute)]
    (list_topics,) = [route for route in routes if route.name == "list_topics"]
    listed = list_topics.endpoint(ListQuery())
    assert [topic.topic for topic in listed.topics] == ["apples", "zebras"]
    (damaged,) = listed.damaged
    assert (damaged.namespace, damaged.topic) == ("default", "orders")
    assert "topic.json is damaged" in damaged.reason
