"""Retention holds what it promises, whoever has the topic open, and however short."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from penstock.log import Retention, TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.segment import segment_bases
from tests.log.contract import TOPIC, batch, payloads

AGE_S = 0.05
SHORT = TopicConfig(retention=Retention(age_s=AGE_S), segment_age_s=AGE_S)


def folder(log_dir: Path) -> Path:
    return log_dir / "topics/default/orders.web/0000"


def append_once(log: EmbeddedLog, payload: bytes) -> None:
    writer = log.writer(TOPIC, 0)
    writer.append([batch(payload)])
    writer.close()


def test_a_topic_that_is_opened_only_for_moments_is_sealed_and_retained(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, SHORT)
    for i in range(3):
        append_once(log, b"%d" % i)
        time.sleep(2 * AGE_S)
        log.maintain(TOPIC)
    # Each was sealed once it had its age, and deleted with the round after it, or at once.
    reader = log.reader(TOPIC, 0)
    assert len(segment_bases(folder(tmp_path))) <= 2
    assert b"0" not in payloads(reader)
    assert b"1" not in payloads(reader)
    assert reader.end() == 3


def test_the_age_of_a_segment_outlives_the_process_that_began_it(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(segment_age_s=AGE_S))
    append_once(log, b"0")
    time.sleep(2 * AGE_S)
    append_once(log, b"1")  # the first thing that this writer does is to seal what is old
    assert segment_bases(folder(tmp_path)) == [0, 1]


def test_a_clock_that_was_set_back_keeps_no_segment_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    with monkeypatch.context() as future:
        now_ns = time.time_ns()
        future.setattr("time.time_ns", lambda: now_ns + 10 * 365 * 86_400 * 10**9)
        append_once(log, b"0")
    append_once(log, b"1")
    assert segment_bases(folder(tmp_path)) == [0, 1]


def test_upkeep_leaves_a_young_segment_alone(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(retention=Retention(age_s=AGE_S)))
    append_once(log, b"0")
    time.sleep(2 * AGE_S)
    log.maintain(TOPIC)
    assert payloads(log.reader(TOPIC, 0)) == [b"0"]
    assert segment_bases(folder(tmp_path)) == [0]


def test_upkeep_repairs_a_partition_that_lost_its_tail(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    append_once(log, b"0")
    os.truncate(folder(tmp_path) / "tail", 0)
    log.maintain(TOPIC)
    assert payloads(log.reader(TOPIC, 0)) == [b"0"]


def test_an_appender_that_has_nothing_to_do_seals_what_is_old(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, SHORT)
    with log.appender(TOPIC, 0) as appender:
        appender.append([batch(b"0")])
        deadline = time.monotonic() + 60
        while payloads(log.reader(TOPIC, 0)) and time.monotonic() < deadline:
            log.maintain(TOPIC)
            time.sleep(0.01)
        assert payloads(log.reader(TOPIC, 0)) == []
        assert appender.append([batch(b"1")])[0].offset == 1


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_segments_are_deleted_once_their_newest_message_has_the_age(
    tmp_path: Path, compression: str
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(
        TOPIC,
        TopicConfig(retention=Retention(age_s=86_400), compression=compression),  # type: ignore[arg-type]
    )
    days = (3, 2, 0, 2)  # how long ago; the last two: an old segment behind one that is kept
    for i, ago in enumerate(days):
        with pytest.MonkeyPatch.context() as past:
            then_ns = time.time_ns() - ago * 86_400 * 10**9
            past.setattr("time.time_ns", lambda then_ns=then_ns: then_ns)
            writer = log.writer(TOPIC, 0)
            writer.append([batch(b"%d" % i)])
        writer.seal()
        writer.close()
    log.maintain(TOPIC)
    assert segment_bases(folder(tmp_path)) == [2, 3, 4]
    reader = log.reader(TOPIC, 0)
    assert reader.begin() == 2
    assert payloads(reader) == [b"2", b"3"]
    assert not list(folder(tmp_path).glob("*00.idx"))


def one_by_one(log: EmbeddedLog, count: int) -> None:
    """A segment each, and an empty one behind them."""
    for i in range(count):
        writer = log.writer(TOPIC, 0)
        writer.append([batch(b"%d" % i)])
        writer.seal()
        writer.close()


def test_what_its_reader_has_done_with_goes_in_whole_segments(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    one_by_one(log, 4)
    writer = log.writer(TOPIC, 0)
    writer.append([batch(b"4", seq=4), batch(b"5", seq=5)])
    writer.seal()
    writer.close()
    for offset, left in ((0, 0), (2, 2), (1, 2), (5, 4), (6, 6), (100, 6)):
        log.trim(TOPIC, 0, offset)
        log.maintain(TOPIC)
        assert segment_bases(folder(tmp_path))[0] == left
        assert log.describe(TOPIC).partitions[0].begin == left
    append_once(log, b"6")
    assert payloads(log.reader(TOPIC, 0)) == [b"6"]


def test_what_its_reader_still_needs_stays_whatever_its_age_and_size(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    short = Retention(age_s=AGE_S, size_bytes=1)
    log.create(TOPIC, TopicConfig(retention=short, segment_age_s=AGE_S))
    log.trim(TOPIC, 0, 0)
    one_by_one(log, 3)
    time.sleep(2 * AGE_S)
    log.maintain(TOPIC)
    assert payloads(log.reader(TOPIC, 0)) == [b"0", b"1", b"2"]


def test_everything_stays_where_it_cannot_be_read_how_far_that_is(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(retention=Retention(size_bytes=1)))
    log.trim(TOPIC, 0, 2)
    (folder(tmp_path) / "trim").write_bytes(b"?")
    one_by_one(log, 3)
    log.maintain(TOPIC)
    assert payloads(log.reader(TOPIC, 0)) == [b"0", b"1", b"2"]
    log.trim(TOPIC, 0, 2)
    log.maintain(TOPIC)
    assert payloads(log.reader(TOPIC, 0)) == [b"2"]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_partition_keeps_no_more_than_its_size_and_a_segment(
    tmp_path: Path, compression: str
) -> None:
    """Whole segments go, oldest first, and no more of them than the bound asks for."""
    segment_bytes, bound = 64 * 1024, 300 * 1024
    log = EmbeddedLog(tmp_path)
    config = TopicConfig(
        compression=compression,  # type: ignore[arg-type]
        retention=Retention(size_bytes=bound),
        segment_bytes=segment_bytes,
    )
    log.create(TOPIC, config)
    rng = random.Random(7)
    writer = log.writer(TOPIC, 0)
    for turn in range(40):
        for number in range(16):
            payload = b"%d:" % (16 * turn + number) + rng.randbytes(2000)
            writer.append([batch(payload, seq=16 * turn + number)])
        log.maintain(TOPIC)
        [partition] = log.describe(TOPIC).partitions
        # The active segment cannot go, and may be up to a group larger than a segment.
        assert partition.size_bytes <= bound + 2 * segment_bytes
        if turn > 15:
            assert partition.size_bytes > bound - 2 * segment_bytes, "and not much less"
            assert partition.segments > 3
    writer.close()
    reader = log.reader(TOPIC, 0)
    numbers = [int(payload.partition(b":")[0]) for payload in payloads(reader)]
    assert numbers == list(range(reader.begin(), 640)), "the newest, without a gap"
    assert not reader.corrupt
