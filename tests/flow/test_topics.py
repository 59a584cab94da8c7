"""The topics of a flow are as the file asks, also those that were there before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.errors import ConfigError, TopicExists
from penstock.flow.topics import make_topic
from penstock.flow.wire import dump_flow, load_flow
from penstock.log import Retention, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.supervisor.planning import settle_topics
from tests.config.files import TINY, flow_of

WEB = TopicName.parse("orders.web")
TCP = "components: {lines: {module: receiver.tcp, topic: orders.web, params: {bind: 7072}}}\n"


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    return EmbeddedLog(tmp_path)


def settle(log: EmbeddedLog, text: str) -> TopicConfig:
    flow = flow_of(text)
    settle_topics(flow, tuple(flow.receivers()), log)
    return log.config(WEB)


def test_what_the_file_says_of_a_topic_is_applied_to_one_that_is_there(log: EmbeddedLog) -> None:
    assert settle(log, TINY).retention == Retention()
    text = TINY + "topics: {orders.web: {retention: {time: 7d, size: 1GiB}, compression: zstd}}\n"
    changed = settle(log, text)
    assert changed.retention == Retention(7 * 86_400.0, 2**30)
    assert changed.compression == "zstd"
    general = "system: {log: {segment_bytes: 64MiB, segment_age_s: 60}}\n" + TINY
    changed = settle(log, general)
    assert (changed.segment_bytes, changed.segment_age_s) == (64 * 2**20, 60.0)
    assert settle(log, TINY + "topics: {orders.web: {retention: kept}}\n").retention == Retention()


def test_what_the_file_says_nothing_of_stays(log: EmbeddedLog) -> None:
    made = TopicConfig(
        partitions=3, compression="lz4", retention=Retention(60.0), segment_bytes=2**26
    )
    log.create(WEB, made)
    assert settle(log, TINY) == made
    # The engine gets the flow from another process, and knows as well what was not said.
    again = load_flow(json.loads(json.dumps(dump_flow(flow_of(TINY)))))
    assert make_topic(log, WEB, again.topic_options("orders.web")) == 3
    assert log.config(WEB) == made


def test_who_gives_the_ids_never_changes(log: EmbeddedLog) -> None:
    log.create(WEB, TopicConfig())
    with pytest.raises(TopicExists, match="cannot become `ids: producer`"):
        settle(log, TINY + "topics: {orders.web: {ids: producer}}\n")


def test_a_topic_that_goes_by_ids_takes_only_receivers_that_have_some(log: EmbeddedLog) -> None:
    log.create(WEB, TopicConfig(ids="producer"))
    assert settle(log, "system: {maxprocs: 2}\n" + TINY).ids == "producer"
    with pytest.raises(ConfigError, match=r"lines: .*receiver\.tcp cannot give a message the id"):
        settle(log, TCP)
