"""`lines`, `separate` and `cut_lines`."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors import cutter
from penstock.interceptors.delimited import cut_lines
from penstock.limits import MAX_BATCH_EVENTS, MiB
from tests.interceptors.feeding import chain, cuts, feed, good, payloads, pieces, split

KEEP = {"keep_empty": True}


@contextlib.contextmanager
def small_blocks(block_bytes: int, short_bytes: int) -> Iterator[None]:
    """Lets a few bytes take the ways that are meant for many."""
    with (
        patch.object(cutter, "BLOCK_BYTES", block_bytes),
        patch.object(cutter, "SHORT_BYTES", short_bytes),
        patch.object(cutter, "FEW", short_bytes),
    ):
        yield


def lines_by_hand(data: bytes, keep_empty: bool) -> list[bytes]:
    *ended, rest = data.split(b"\n")
    found = [line.removesuffix(b"\r") for line in ended]
    rest = rest.removesuffix(b"\r")
    if rest:
        found.append(rest)
    return [line for line in found if line or keep_empty]


liney = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"bc", b"\n\n"])).map(b"".join)


@given(liney, cuts, st.booleans(), st.integers(1, 9), st.sampled_from([0, 100]))
def test_lines_are_the_same_however_the_stream_is_cut(data, at, keep_empty, block, short):
    with small_blocks(block, short):
        found = good(chain(("lines", {"keep_empty": keep_empty})), *split(data, at))
        assert pieces(cut_lines(data, keep_empty, 100)) == lines_by_hand(data, keep_empty)
    assert found == lines_by_hand(data, keep_empty)


@given(
    st.lists(st.sampled_from([b"\n", b"\r", b"aaaa", b"b"])).map(b"".join),
    cuts,
    st.integers(1, 6),
    st.integers(1, 9),
    st.sampled_from([0, 100]),
)
def test_lines_before_one_that_is_too_long_arrive(data, at, max_length, block, short):
    expected = lines_by_hand(data, True)
    long = [index for index, line in enumerate(expected) if len(line) > max_length]
    options = {"keep_empty": True, "max_length": max_length}
    with small_blocks(block, short):
        found, error = feed(chain(("lines", options)), split(data, at))
    if not long:
        assert (found, error) == (expected, None)
        return
    assert isinstance(error, TooLarge)
    assert found == expected[: long[0]]
    begins = 0
    for _ in range(long[0]):
        begins = data.index(b"\n", begins) + 1
    assert f"byte {begins}:" in str(error)


@given(
    st.sampled_from([b"|", b"||", b"ab", b"aba", b"\r\n", b"aab"]),
    st.lists(st.sampled_from([b"a", b"b", b"|", b"||", b"\r", b"\n", b"xyz"])).map(b"".join),
    cuts,
    st.integers(1, 9),
    st.sampled_from([0, 100]),
)
def test_separate_cuts_at_the_first_delimiter_from_the_left(delimiter, data, at, block, short):
    *expected, rest = data.split(delimiter)
    if rest:
        expected.append(rest)
    with small_blocks(block, short):
        found = good(chain(("separate", {"delimiter": delimiter.decode()})), *split(data, at))
    assert found == expected


@given(
    st.sampled_from(["|", "||", "ab", "aba"]),
    st.lists(st.sampled_from([b"a", b"b", b"|", b"xyz"])).map(b"".join),
    cuts,
    cuts,
    st.integers(1, 4),
)
def test_separate_fails_alike_however_the_stream_is_cut(delimiter, data, at, other, max_length):
    options = {"delimiter": delimiter, "max_length": max_length}
    found, error = feed(chain(("separate", options)), split(data, at))
    again, other_error = feed(chain(("separate", options)), split(data, other))
    assert found == again
    assert str(error) == str(other_error)


def test_a_line_end_split_over_chunks_is_one_line_end():
    assert good(chain("lines"), b"one\r", b"\ntwo\r", b"\n") == [b"one", b"two"]


def test_empty_lines_are_skipped_unless_kept():
    assert good(chain("lines"), b"\n\na\n\r\n") == [b"a"]
    assert good(chain(("lines", KEEP)), b"\n\na\n\r\n") == [b"", b"", b"a", b""]


def test_only_one_carriage_return_belongs_to_the_line_end():
    assert good(chain(("lines", KEEP)), b"a\r\r\n\r\r\r\n" * 50) == [b"a\r", b"\r\r"] * 50
    assert good(chain("lines"), b"a\rb\n") == [b"a\rb"]


def test_the_last_line_need_not_end():
    assert good(chain("lines"), b"a\nb") == [b"a", b"b"]
    assert good(chain("lines"), b"a\nb\r") == [b"a", b"b"]
    assert good(chain(("lines", KEEP)), b"a\n\r") == [b"a"]


def test_a_stream_of_nothing_has_no_payloads():
    assert good(chain(("lines", KEEP))) == []
    assert good(chain(("lines", KEEP)), b"", b"") == []


def test_a_carriage_return_does_not_count_towards_the_limit():
    five = chain(("lines", {"max_length": 5}))
    assert good(five, b"12345\r", b"\n12345", b"\r\n") == [b"12345", b"12345"]


def test_a_delimiter_does_not_count_towards_the_limit():
    options = {"delimiter": "--", "max_length": 3}
    assert good(chain(("separate", options)), b"123-", b"-12-", b"--") == [b"123", b"12", b"-"]


def test_a_line_is_too_long_as_soon_as_that_can_be_known():
    stream = chain(("lines", {"max_length": 5}))
    stream.feed(b"ab\n12345")
    with pytest.raises(TooLarge, match="byte 3:"):
        stream.feed(b"6")


def test_good_lines_in_the_same_chunk_as_a_bad_one_arrive_first():
    stream = chain(("lines", {"max_length": 5}))
    assert pieces(stream.feed(b"ab\n1234567\ncd\n")) == [b"ab"]
    assert isinstance(stream.failed, TooLarge)
    with pytest.raises(TooLarge, match="byte 3:"):
        stream.feed(b"ef\n")
    with pytest.raises(TooLarge, match="byte 3:"):
        stream.flush()


def test_a_long_line_in_many_small_chunks_is_kept_without_slack():
    stream = chain(("lines", {"max_length": "1MiB"}))
    for _ in range(100_000):
        stream.feed(b"ten bytes.")
        assert stream.held_bytes <= 1_000_000
    assert pieces(stream.feed(b"\n")) == [b"ten bytes." * 100_000]
    assert stream.held_bytes == 0


def test_a_body_of_nothing_but_line_ends_takes_little_memory():
    body = b"\n" * (16 * MiB)
    tracemalloc.start()
    try:
        assert cut_lines(body, False, 100).count == 0
        with pytest.raises(TooLarge, match=f"more than {MAX_BATCH_EVENTS} payloads"):
            cut_lines(body, True, 100)
        with pytest.raises(TooLarge, match=f"more than {MAX_BATCH_EVENTS} payloads"):
            chain(("separate", {"delimiter": "\n\n"}), framed=True).feed(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 * MiB


def test_a_body_is_cut_whole_or_not_at_all():
    assert pieces(cut_lines(b'{"a":1}\r\n\r\n{"b":2}', False, 100)) == [b'{"a":1}', b'{"b":2}']
    with pytest.raises(TooLarge, match="byte 2:"):
        cut_lines(b"a\nbcd\n", False, 2)
    framed = chain(("lines", {"max_length": 2}), framed=True)
    with pytest.raises(TooLarge, match="byte 2:"):
        framed.feed(b"a\nbcd\n")
    assert pieces(framed.feed(b"e\nf")) == [b"e", b"f"]


def test_a_cut_body_does_not_point_into_the_buffer_it_came_from():
    buffer = bytearray(b"one line")
    cut = cut_lines(memoryview(buffer), False, 100)
    buffer[:3] = b"???"
    assert pieces(cut) == [b"one line"]


@given(st.lists(st.binary(max_size=20).filter(lambda b: b"\n" not in b and b[-1:] != b"\r")))
def test_lines_that_were_sent_arrive_as_they_were(lines):
    stream = chain(("lines", KEEP))
    assert pieces(stream.feed(stream.wrap(payloads(*lines)).blob)) == lines


@pytest.mark.parametrize(
    ("interceptor", "payload"),
    [
        (("lines", {}), b"a\nb"),
        (("lines", {}), b"a\r"),
        (("lines", {}), b""),
        (("lines", {"max_length": 3}), b"abcd"),
        (("separate", {"delimiter": "||"}), b"a|||"),
        (("separate", {"delimiter": "||"}), b"a|"),
    ],
)
def test_a_payload_that_would_not_arrive_as_it_is_is_not_sent(interceptor, payload):
    with pytest.raises(InvalidMessage, match="cannot be sent"):
        chain(interceptor).wrap(payloads(b"good", payload))
