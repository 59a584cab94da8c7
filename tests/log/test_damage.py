"""Damage on disk: torn tails are cut, corrupt batches are named and never served, the rest is read."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import LogError
from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog, keeper
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


def test_upkeep_reads_a_damaged_segment_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, pack=False)
    log = EmbeddedLog(tmp_path)
    writer = log.writer(TOPIC, 0)
    writer.seal()
    writer.close()
    path = segment(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(sound[:300] + b"?" + sound[301:])
    read: list[Path] = []
    really = keeper.map_file
    monkeypatch.setattr(keeper, "map_file", lambda path: [read.append(path), really(path)][1])
    for _ in range(3):
        log.maintain(TOPIC)
    assert read == [path]
    path.write_bytes(sound)  # from a backup
    log.maintain(TOPIC)
    assert read == [path, path]
    assert path.with_suffix(".idx").exists()
    assert log.verify(TOPIC).corrupt == ()


_READ_WHILE_THE_WRITER_CUTS = """
import os, sys
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
reader = EmbeddedLog(sys.argv[1]).reader(TopicName.parse("orders.web"), 0)
list(reader.read(0, end=1))  # now the zeros ahead of the writer are mapped, too
os.truncate(sys.argv[2], reader.state().position)  # a disk that filled up
print(sum(batch.num_rows for batch in reader.read(0)), len(reader.corrupt))
print(len(reader.verify()))
"""


def test_damage_at_the_end_is_read_while_the_writer_cuts_its_file_back(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for i in range(3):
        writer.append([batch(b"%d" % i)])
    path, reader = segment(tmp_path), log.reader(TOPIC, 0)
    position, size = reader.state().position, path.stat().st_size
    assert size > position + mmap.PAGESIZE
    with path.open("r+b") as file:
        file.seek(position - (position - 64) // 3)  # the last frame's header
        file.write(b"????")
    done = subprocess.run(
        [sys.executable, "-c", _READ_WHILE_THE_WRITER_CUTS, str(tmp_path), str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    writer.close()
    assert (done.returncode, done.stdout.split()) == (0, ["2", "1", "1"]), done.stderr


def two_segments(data_dir: Path, layout: str) -> tuple[EmbeddedLog, list[bytes]]:
    """Twice forty messages of a numbered stream, in two sealed segments; `layout` is how they are packed."""
    log = EmbeddedLog(data_dir)
    compression = layout if layout in ("lz4", "zstd") else "none"
    log.create(TOPIC, TopicConfig(compression=compression))  # type: ignore[arg-type]
    writer = log.writer(TOPIC, 0)
    expected = [b"%d-%s" % (i, b"x" * i) for i in range(80)]
    for i in range(0, 80, 5):
        writer.append([batch(*expected[i : i + 5], stream="s", seq=i)])
        if i % 40 == 35:
            writer.seal()
    writer.close()
    if layout != "as appended":
        log.maintain(TOPIC)
        assert segment(data_dir).with_suffix(".idx").exists()
    return log, expected


def flip(path: Path, where: float, change: int = 0x55) -> None:
    """In place, as a disk does it."""
    with path.open("r+b") as file:
        at = int(where * path.stat().st_size)
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes((byte ^ change,)), at)


@pytest.mark.parametrize("layout", ["as appended", "packed", "lz4", "zstd"])
def test_damage_in_a_sealed_segment_is_reported_and_costs_no_other(
    tmp_path_factory: pytest.TempPathFactory, layout: str
) -> None:
    for where in (0.0, 0.03, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999):
        data_dir = tmp_path_factory.mktemp("sealed")
        log, expected = two_segments(data_dir, layout)
        path = segment(data_dir)
        flip(path, where)
        corrupt = log.verify(TOPIC).corrupt
        assert len(corrupt) == 1, where
        assert str(path) in str(corrupt[0])
        reader = log.reader(TOPIC, 0)
        served = payloads(reader)
        first, last = corrupt[0].first, corrupt[0].last
        if where == 0.0:  # the segment's own header: its frames say all that is needed
            assert served == expected
            continue
        assert served == expected[:first] + expected[last + 1 :]
        assert last < 40
        assert len(reader.corrupt) == 1
        log.maintain(TOPIC)  # which does not pack it, and so hide what was lost
        assert list(map(str, log.verify(TOPIC).corrupt)) == list(map(str, corrupt))


@pytest.mark.parametrize("layout", ["packed", "zstd"])
@pytest.mark.parametrize("suffix", [".idx", ".prd"])
def test_damage_beside_a_segment_costs_nothing(tmp_path: Path, layout: str, suffix: str) -> None:
    log, expected = two_segments(tmp_path, layout)
    for where in (0.0, 0.2, 0.5, 0.8, 0.999):
        for path in segment(tmp_path).parent.glob(f"*{suffix}"):
            flip(path, where)
        assert payloads(log.reader(TOPIC, 0)) == expected
        assert payloads(log.reader(TOPIC, 0), 47, end=49) == expected[47:49]
        assert log.verify(TOPIC).corrupt == ()
        writer = log.writer(TOPIC, 0)
        repeat = writer.append([batch(expected[3], stream="s", seq=3)])[0]
        assert (repeat.offset, repeat.repeats) == (3, 1)
        writer.close()


@pytest.mark.parametrize("where", [0.0, 0.2, 0.9])
def test_a_damaged_tail_is_named_and_the_next_writer_repairs_it(
    tmp_path: Path, where: float
) -> None:
    log, expected = two_segments(tmp_path, "packed")
    flip(segment(tmp_path).with_name("tail"), where)
    with pytest.raises(LogError, match="tail is damaged"):
        payloads(log.reader(TOPIC, 0))
    writer = log.writer(TOPIC, 0)
    assert writer.append([batch(b"after", stream="s", seq=80)])[0].offset == 80
    writer.close()
    assert payloads(log.reader(TOPIC, 0)) == [*expected, b"after"]
