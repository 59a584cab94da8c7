"""Parks and cuts are kept until they have been read for good, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.model import RetentionOptions, TopicOptions
from penstock.engine.trimming import Trimming
from penstock.flow.decisions import Decision, Decisions
from penstock.flow.topics import make_passage, make_topic
from penstock.limits import TRIM_INTERVAL_S
from penstock.log import Retention, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.trim import read_trim
from tests.sinks.making import events

PARK, CUT = TopicName.parse("t.a.park"), TopicName.parse("t.unique")


def decided(log: Decisions, number: int, topic: TopicName, end: int, *, done: bool = True) -> None:
    log.decide(Decision(number, {}, {(str(topic), 0): end}))
    if done:
        log.finished(number)


def test_readers_say_how_far_they_have_come_for_good(tmp_path: Path) -> None:
    log, now = EmbeddedLog(tmp_path), [0.0]
    drains, reads = Decisions(tmp_path / "drain"), Decisions(tmp_path / "piece")
    for topic in (PARK, CUT):
        log.create(topic, TopicConfig())

    def trimmed() -> list[int | None]:
        now[0] += TRIM_INTERVAL_S
        trimming.look()
        folders = [tmp_path / "topics/default" / str(one) / "0000" for one in (PARK, CUT)]
        return [read_trim(folder) for folder in folders]

    trimming = Trimming(log, {str(PARK): drains}, [(str(CUT), reads)], clock=lambda: now[0])
    assert trimmed() == [None, None]
    decided(drains, 0, PARK, 10)
    decided(reads, 0, CUT, 10)
    assert trimmed() == [10, None], "Spark may be led through the last batch once more"
    decided(drains, 1, PARK, 20, done=False)
    decided(reads, 1, CUT, 20, done=False)
    assert trimmed() == [10, 10], "what is not finished is read once more"
    drains.finished(1)
    assert trimmed() == [20, 10]
    trimming.look()
    drains.close()
    assert trimmed() == [20, 10], "an error stops nothing"


@pytest.mark.parametrize("done", [True, False])
def test_a_log_that_was_replaced_does_not_know_where_its_last_decision_began(
    tmp_path: Path, done: bool
) -> None:
    log = Decisions(tmp_path)
    decided(log, 0, PARK, 10)
    decided(log, 1, PARK, 20, done=done)
    log.close()
    for _ in range(2):  # opening it replaces it
        log = Decisions(tmp_path)
        log.close()
    assert log.before == {}
    if done:
        log = Decisions(tmp_path)
        decided(log, 2, PARK, 30)
        assert log.before == {(str(PARK), 0): 20}
        log.close()


@pytest.mark.parametrize("made_before", [True, False])
def test_retention_of_the_flow_file_does_not_count_for_them(
    tmp_path: Path, made_before: bool
) -> None:
    log = EmbeddedLog(tmp_path)
    options = TopicOptions(partitions=1, retention=RetentionOptions(size_bytes=1))
    if made_before:
        make_topic(log, PARK, options)
    for _ in range(2):
        make_passage(log, PARK, options)
    assert (log.config(PARK).retention == Retention()) is not made_before
    rows = events(b"a").drop_columns(["topic", "partition", "offset"])
    for number in range(3):
        writer = log.writer(PARK, 0)
        writer.append_rows(rows, producer="p", number=number)
        writer.seal()
        writer.close()
    log.maintain(PARK)
    assert log.describe(PARK).partitions[0].begin == 0
