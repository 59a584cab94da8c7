"""Replayable sources: what was read is not read again, whatever happened to the program."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, TooLarge
from penstock.sdk import FramedFileSource, LineFileSource, ReplayableSource, Throttled

LINES = st.lists(st.binary(max_size=20).map(lambda b: b.translate(None, b"\r\n")), max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


def check_replays(source: ReplayableSource, expected: list[bytes]) -> None:
    source.reset(None)
    found = list(source)
    assert [payload for _, payload in found] == expected
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
    for index, number in enumerate(numbers):
        source.reset(number)
        assert list(source) == found[index + 1 :], "it goes on after the point of reference"


@given(lines=LINES)
def test_lines_are_given_once_from_any_point_of_reference(folder: Path, lines: list[bytes]) -> None:
    path = folder / "lines"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + b"not finis")
    check_replays(LineFileSource(path), lines)
    check_replays(LineFileSource(path, unfinished=True), [*lines, b"not finis"])


@given(payloads=st.lists(st.binary(max_size=20), max_size=12), size=st.sampled_from([1, 2, 4, 8]))
def test_framed_messages_are_given_once_from_any_point_of_reference(
    folder: Path, payloads: list[bytes], size: int
) -> None:
    path = folder / "framed"
    framed = b"".join(len(one).to_bytes(size, "big") + one for one in payloads)
    path.write_bytes(framed + (9).to_bytes(size, "big") + b"torn")
    check_replays(FramedFileSource(path, length_bytes=size), payloads)


def test_a_file_that_grows_is_read_on_and_another_file_is_noticed(folder: Path) -> None:
    path = folder / "growing"
    path.write_bytes(b"one\r\ntwo\n")
    source = LineFileSource(path)
    assert list(source) == [(5, b"one"), (9, b"two")]
    with open(path, "ab") as file:
        file.write(b"three\n")
    assert list(source) == [(15, b"three")]
    with pytest.raises(InvalidMessage, match="has 15 bytes, and was read up to byte 99"):
        source.reset(99)
    with pytest.raises(InvalidMessage, match="byte 7 is in the middle of a line"):
        source.reset(7)
    path.write_bytes(struct.pack(">I", 2**31))
    with pytest.raises(TooLarge, match="a message of 2147483648 bytes is over the limit"):
        list(FramedFileSource(path))


def test_a_throttled_source_keeps_to_its_rate_and_makes_up_for_no_pause(folder: Path) -> None:
    path = folder / "throttled"
    path.write_bytes(b"x\n" * 6)
    now = 0.0
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    source = Throttled(LineFileSource(path), per_s=4, clock=lambda: now, sleep=sleep)
    source.reset(2)
    for index, _ in enumerate(source):
        if index == 1:
            now += 10
    assert slept == [0.25, 0.25, 0.25]
