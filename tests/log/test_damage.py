"""Damage on disk: torn tails are cut, corrupt batches are named and never served, the rest is read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from tests.log.contract import TOPIC, batch, payloads


def segment(data_dir: Path) -> Path:
    return data_dir / "topics/default/orders.web/0000/00000000000000000000.seg"


def filled(data_dir: Path, *, pack: bool = False) -> list[bytes]:
    """A topic of 40 messages in 8 frames (or 1 packed one); returns its payloads."""
    log = EmbeddedLog(data_dir)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    expected = []
    for i in range(8):
        group = [b"%d-%d-%s" % (i, j, b"x" * (i * 7 + j)) for j in range(5)]
        expected += group
        writer.append([batch(*group, stream="s", seq=5 * i, meta={"i": str(i)})])
    if pack:
        writer.seal()
    writer.close()
    if pack:
        log.maintain(TOPIC)
    return expected


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), pack=st.booleans())
def test_any_damaged_byte_is_reported_and_never_served(
    tmp_path_factory: pytest.TempPathFactory, where: float, flip: int, pack: bool
) -> None:
    data_dir = tmp_path_factory.mktemp("damage")
    expected = filled(data_dir, pack=pack)
    path = segment(data_dir)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= flip
    path.write_bytes(content)

    log = EmbeddedLog(data_dir)
    info = log.verify(TOPIC)
    assert len(info.corrupt) == 1
    assert str(path) in str(info.corrupt[0])
    reader = log.reader(TOPIC, 0)
    served = payloads(reader)
    assert set(served) <= set(expected)
    if int(where * len(content)) < 64:
        assert served == expected  # only the segment's own header
    else:
        lost = info.corrupt[0].last - info.corrupt[0].first + 1
        assert len(served) == len(expected) - lost
        assert lost == (40 if pack else 5)
        assert reader.corrupt == list(info.corrupt) or str(reader.corrupt) == str(
            list(info.corrupt)
        )

    # The writer opens it too, keeps the damage where it is, and goes on behind it.
    writer = log.writer(TOPIC, 0)
    assert writer.append([batch(b"after", stream="~new")])[0].offset == 40
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [*served, b"after"]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cut=st.integers(1, 700), garbage=st.binary(max_size=200), lose_tail=st.booleans())
def test_a_torn_tail_is_cut_and_what_came_before_stays(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes, lose_tail: bool
) -> None:
    data_dir = tmp_path_factory.mktemp("torn")
    expected = filled(data_dir)
    path = segment(data_dir)
    # A commit that was under way: half a frame, or noise, behind what `tail` calls durable.
    frame = path.read_bytes()[-704:]
    with path.open("ab") as file:
        file.write(garbage or frame[:cut])
    if lose_tail:
        os.unlink(path.with_name("tail"))
    log = EmbeddedLog(data_dir)
    writer = log.writer(TOPIC, 0)
    assert writer.corrupt == []
    assert writer.append([batch(b"after", stream="~new")])[0].offset == 40
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [*expected, b"after"]
    assert log.verify(TOPIC).corrupt == ()
