"""Small frames are read many at a time. That must show in nothing but the speed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.limits import GATHERED_FRAME_BYTES
from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.codec import decode
from penstock.log.embedded.segment import SEGMENT_HEADER_BYTES, map_file, walk
from penstock.message import Batch
from tests.log.contract import TOPIC

names = st.sampled_from(["~a", "~b", '~ü"\\', "~" + "long" * 60])
metas = st.sampled_from([{}, {"kind": "x"}, {"kind": "ü", "more": "\n"}])
keys = st.none() | st.lists(st.none() | st.binary(max_size=5), min_size=4, max_size=4)


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    peer, stream, seq = draw(st.sampled_from(["web", "tcp"])), draw(names), draw(st.integers(0, 9))
    if draw(st.booleans()):  # as a POST of one message has it
        return Batch(
            peer, stream, seq, draw(st.binary(max_size=70)), time_us=draw(st.integers(0, 9))
        )
    many = draw(st.lists(st.binary(max_size=70), min_size=1, max_size=4))
    if draw(st.integers(0, 20)) == 0:
        many.append(b"x" * GATHERED_FRAME_BYTES)  # a frame that is not gathered
    given_keys = draw(keys)
    return Batch.of(
        peer,
        stream,
        seq,
        many,
        meta=draw(metas),
        keys=None if given_keys is None else (given_keys * 2)[: len(many)],
        time_us=draw(st.integers(0, 9)),
    )


frames = st.lists(st.lists(batches(), min_size=1, max_size=4), min_size=1, max_size=25) | st.lists(
    st.builds(lambda one: [one], batches()), min_size=1, max_size=40
)


def segment(data_dir: Path) -> Path:
    return data_dir / "topics/default/orders.web/0000/00000000000000000000.seg"


def one_by_one(data_dir: Path) -> Iterator[pa.RecordBatch]:
    """Every valid frame of the segment, decoded by itself."""
    log = EmbeddedLog(data_dir)
    seed = log._load(TOPIC)[1]
    data = map_file(segment(data_dir))
    for found in walk(data, SEGMENT_HEADER_BYTES, len(data), seed):
        if found.header is not None and found.damage is None:
            yield from decode(data, found.position, found.header)


def rows(found: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    all_rows = []
    for batch in found:
        batch.validate(full=True)
        all_rows += batch.to_pylist()
    return all_rows


def write(data_dir: Path, groups: list[list[Batch]]) -> None:
    log = EmbeddedLog(data_dir)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for group in groups:
        writer.append(group)
    writer.close()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(groups=frames, start=st.integers(0, 60), most=st.none() | st.integers(1, 60))
def test_frames_read_together_are_the_same_messages_as_read_one_by_one(
    tmp_path_factory: pytest.TempPathFactory,
    groups: list[list[Batch]],
    start: int,
    most: int | None,
) -> None:
    data_dir = tmp_path_factory.mktemp("together")
    write(data_dir, groups)
    expected = rows(one_by_one(data_dir))
    assert [row["offset"] for row in expected] == list(range(len(expected)))
    reader = EmbeddedLog(data_dir).reader(TOPIC, 0)
    assert rows(reader.read(0)) == expected
    stop = None if most is None else start + most
    assert rows(reader.read(start, max_rows=most)) == expected[start:stop]
    assert rows(reader.read(start, end=stop)) == expected[start:stop]
    assert reader.corrupt == []


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(groups=frames, where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
def test_damage_among_frames_read_together_costs_no_other_frame(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Batch]], where: float, flip: int
) -> None:
    data_dir = tmp_path_factory.mktemp("damaged")
    write(data_dir, groups)
    content = bytearray(segment(data_dir).read_bytes())
    content[SEGMENT_HEADER_BYTES + int(where * (len(content) - SEGMENT_HEADER_BYTES))] ^= flip
    segment(data_dir).write_bytes(content)
    reader = EmbeddedLog(data_dir).reader(TOPIC, 0)
    served = rows(reader.read(0))
    assert served == rows(one_by_one(data_dir))
    (corrupt,) = reader.corrupt
    total = sum(batch.count for group in groups for batch in group)
    lost = set(range(total)) - {row["offset"] for row in served}
    assert lost == set(range(corrupt.first, corrupt.last + 1))
    verified = EmbeddedLog(data_dir).reader(TOPIC, 0).verify()
    assert list(map(str, reader.corrupt)) == list(map(str, verified))


def test_a_topic_of_single_messages_is_read_in_large_batches(tmp_path: Path) -> None:
    write(tmp_path, [[Batch("web", f"~{i % 3}", i, b"m%d" % i)] for i in range(500)])
    (batch,) = EmbeddedLog(tmp_path).reader(TOPIC, 0).read(0)
    assert batch.column("payload").to_pylist() == [b"m%d" % i for i in range(500)]
    assert batch.column("stream").to_pylist() == [f"~{i % 3}" for i in range(500)]


def test_a_reader_that_follows_sees_each_message_once_as_the_segment_grows(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer, reader = log.writer(TOPIC, 0), log.reader(TOPIC, 0)
    seen: list[bytes] = []
    for turn in range(60):
        for number in range(turn % 4):
            writer.append([Batch("web", "~a", 0, b"%d.%d" % (turn, number))])
        for batch in reader.read(len(seen)):
            seen += batch.column("payload").to_pylist()
    assert seen == [b"%d.%d" % (turn, number) for turn in range(60) for number in range(turn % 4)]
    writer.close()
