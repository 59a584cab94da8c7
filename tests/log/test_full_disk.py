"""A full disk: appends are refused cleanly, nothing is torn, and all goes on when there is space again."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import LogFull
from penstock.limits import DISK_RETRY_S
from penstock.log import Appended, Retention, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.appender import Appender
from penstock.log.embedded.writer import PartitionWriter
from tests.log.contract import TOPIC, batch, payloads, some_rows
from tests.log.owning import Owner
from tests.small_disk import Disk, small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", 40) as found:
        found.fill(leave_bytes=12 << 20)
        yield found


def body(number: int) -> bytes:
    """Says what it must be, so that a torn one shows."""
    size = number * 7919 % 5000
    return b"%d:%d:" % (number, size) + b"x" * size


def fill(writer: PartitionWriter | Appender, start: int) -> int:
    """Append numbered messages until the disk is full; the number that was refused."""
    for number in range(start, start + 100_000):
        try:
            writer.append([batch(body(number), stream="s", seq=number)])
        except LogFull:
            return number
    raise AssertionError("the disk does not fill up")


def eventually_stored(append: Callable[[], object]) -> None:
    """Space is back: within about DISK_RETRY_S the log tries the disk again."""
    deadline = time.monotonic() + 30 * DISK_RETRY_S
    while True:
        try:
            append()
            return
        except LogFull:
            assert time.monotonic() < deadline, "space is back, and appends are still refused"
            time.sleep(DISK_RETRY_S / 10)


def test_appends_are_refused_while_the_disk_is_full_and_go_on_afterwards(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    expected = 0
    for _ in range(3):
        disk.fill(leave_bytes=1 << 20)
        refused = fill(writer, expected)
        assert refused > expected
        assert log.reader(TOPIC, 0).end() == refused
        assert log.verify(TOPIC).corrupt == ()
        disk.make_room()
        again = batch(body(refused), stream="s", seq=refused)
        eventually_stored(lambda again=again: writer.append([again]))
        expected = refused + 1
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [body(number) for number in range(expected)]
    assert log.verify(TOPIC).corrupt == ()


def test_a_log_opens_on_a_full_disk_and_remembers_what_it_must(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    writer.append_rows(some_rows(b"r"), producer="p", number=0)
    disk.fill(leave_bytes=1 << 20)
    refused = fill(writer, 0)
    disk.fill()
    writer.close()
    writer = log.writer(TOPIC, 0)
    assert log.reader(TOPIC, 0).end() == refused + 1
    assert writer.append([batch(body(0), stream="s", seq=0)])[0].repeats == 1
    assert writer.append_rows(some_rows(b"r"), producer="p", number=0).repeats == 1
    assert fill(writer, refused) == refused
    disk.make_room()
    again = batch(body(refused), stream="s", seq=refused)
    eventually_stored(lambda: writer.append([again]))
    writer.close()
    assert log.verify(TOPIC).corrupt == ()


def test_a_number_of_rows_that_did_not_fit_is_finished_when_there_is_space(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    disk.make_room()
    disk.fill(leave_bytes=18 << 20)
    big = [bytes([65 + i]) * (6 << 20) for i in range(5)]
    with pytest.raises(LogFull, match="the disk is full"):
        writer.append_rows(some_rows(*big), producer="p", number=0)
    stored = log.reader(TOPIC, 0).end()
    assert 0 < stored < 5
    assert log.verify(TOPIC).corrupt == ()
    assert payloads(log.reader(TOPIC, 0)) == big[:stored]
    disk.make_room()
    results: list[Appended] = []
    eventually_stored(
        lambda: results.append(writer.append_rows(some_rows(*big), producer="p", number=0))
    )
    writer.close()
    assert results == [Appended(0, 5, stored)]
    assert payloads(log.reader(TOPIC, 0)) == big


def test_the_keeper_makes_room_even_if_it_has_none_to_re_pack(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig(retention=Retention(size_bytes=1), segment_bytes=1 << 20))
    writer = log.writer(TOPIC, 0)
    refused = fill(writer, 0)
    disk.fill()
    segments = log.describe(TOPIC).partitions[0].segments
    with pytest.raises(OSError, match="No space left"):
        log.maintain(TOPIC)
    info = log.describe(TOPIC).partitions[0]
    assert info.segments < segments
    assert info.end == refused
    assert list(disk.path.rglob("*.tmp")) == []
    again = batch(body(refused), stream="s", seq=refused)
    eventually_stored(lambda: writer.append([again]))
    writer.close()


def test_a_topic_that_cannot_be_made_is_not_there_at_all(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig())
    disk.fill()
    other = TopicName.parse("other")
    with pytest.raises(LogFull):
        log.create(other, TopicConfig())
    with pytest.raises(LogFull):
        log.create(TOPIC, TopicConfig(partitions=2))
    assert log.topics() == [TOPIC]
    assert log.config(TOPIC).partitions == 1
    disk.make_room()
    assert log.create(other, TopicConfig())
    assert log.create(TOPIC, TopicConfig(partitions=2))
    log.writer(TOPIC, 1).close()


def test_an_appender_is_told_by_the_owner_that_the_disk_is_full(disk: Disk) -> None:
    log = EmbeddedLog(disk.path)
    log.create(TOPIC, TopicConfig())
    owner = Owner(disk.path)
    try:
        with log.appender(TOPIC, 0) as appender:
            disk.fill(leave_bytes=1 << 20)
            refused = fill(appender, 0)
            disk.make_room()
            again = batch(body(refused), stream="s", seq=refused)
            eventually_stored(lambda: appender.append([again]))
        assert owner.stop() == 0
    finally:
        if owner.process.poll() is None:
            owner.kill()
    assert payloads(log.reader(TOPIC, 0)) == [body(number) for number in range(refused + 1)]


def test_a_file_that_may_grow_no_further_is_a_full_disk_too(tmp_path: Path) -> None:
    """With a limit on file sizes instead of a small disk: needs no right to mount one."""
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        refused = fill(writer, 0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refused > 0
    again = batch(body(refused), stream="s", seq=refused)
    eventually_stored(lambda: writer.append([again]))
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [body(number) for number in range(refused + 1)]
    assert log.verify(TOPIC).corrupt == ()
