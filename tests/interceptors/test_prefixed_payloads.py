"""`length_prefixed`, `textual_length_prefixed` and `cut_length_prefixed`."""

from __future__ import annotations

import struct
import tracemalloc
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors import prefixed
from penstock.interceptors.prefixed import cut_length_prefixed
from penstock.limits import MAX_BATCH_EVENTS, MAX_MESSAGE_BYTES, MiB
from tests.interceptors.feeding import chain, cuts, feed, good, payloads, pieces, split


def u64(*pieces: bytes) -> bytes:
    return b"".join(struct.pack(">Q", len(piece)) + piece for piece in pieces)


def textual(*pieces: bytes) -> bytes:
    return b"".join(b"%d %s" % (len(piece), piece) for piece in pieces)


KINDS = [("length_prefixed", u64), ("textual_length_prefixed", textual)]
several = st.lists(st.binary(max_size=40), max_size=12)


@pytest.mark.parametrize(("name", "pack"), KINDS)
@given(sent=several, at=cuts, block=st.integers(1, 4))
def test_frames_are_the_same_however_the_stream_is_cut(name, pack, sent, at, block):
    with patch.object(prefixed, "BLOCK_FRAMES", block):
        assert good(chain(name), *split(pack(*sent), at)) == sent


@pytest.mark.parametrize(("name", "pack"), KINDS)
@given(sent=several)
def test_frames_that_were_sent_arrive_as_they_were(name, pack, sent):
    out = chain(name)
    assert out.wrap(payloads(*sent)).blob == pack(*sent)
    assert out.finish() == b""


@pytest.mark.parametrize(("name", "pack"), KINDS)
@given(sent=several.filter(lambda sent: len(sent) > 0), cut=st.integers(1, 1000))
def test_a_stream_that_ends_inside_a_frame_is_invalid_after_the_whole_ones(name, pack, sent, cut):
    data = pack(*sent)
    last = len(pack(sent[-1]))
    short = data[: len(data) - (1 + cut % (last - 1))]
    found, error = feed(chain(name), [short])
    assert found == sent[:-1]
    assert type(error) is InvalidMessage
    assert f"byte {len(data) - last}:" in str(error)


@pytest.mark.parametrize(("name", "pack"), KINDS)
def test_a_length_over_the_limit_is_refused_before_any_of_its_bytes(name, pack):
    stream = chain((name, {"max_length": 10}))
    assert pieces(stream.feed(pack(b"0123456789"))) == [b"0123456789"]
    header = pack(b"x" * 11)[:-11]
    with pytest.raises(TooLarge, match=f"byte {len(pack(b'0123456789'))}: a payload .* announced"):
        stream.feed(header)


@pytest.mark.parametrize(("name", "pack"), KINDS)
def test_frames_before_a_bad_one_in_the_same_chunk_arrive(name, pack):
    stream = chain((name, {"max_length": 3}))
    found, error = feed(stream, [pack(b"a", b"", b"toolong", b"b")])
    assert found == [b"a", b""]
    assert isinstance(error, TooLarge)


def test_the_largest_length_there_is_is_refused():
    with pytest.raises(TooLarge, match=str(2**64 - 1)):
        chain("length_prefixed").feed(b"\xff" * 8)


@pytest.mark.parametrize("name", ["length_prefixed", "textual_length_prefixed"])
def test_a_declared_length_allocates_nothing(name):
    header = {
        "length_prefixed": struct.pack(">Q", MAX_MESSAGE_BYTES),
        "textual_length_prefixed": b"%d " % MAX_MESSAGE_BYTES,
    }[name]
    stream = chain(name)
    stream.feed(b"")
    tracemalloc.start()
    try:
        assert stream.feed(header).count == 0
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert stream.held_bytes == len(header)


def test_a_large_frame_in_small_chunks_is_kept_without_slack():
    stream = chain("length_prefixed")
    frame = u64(b"x" * MiB)
    tracemalloc.start()
    try:
        found = [stream.feed(frame[at : at + 10]) for at in range(0, len(frame), 10)]
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [some.count for some in found] == [0] * (len(found) - 1) + [1]
    assert peak_bytes < 8 * MiB
    assert stream.held_bytes == 0


def test_zero_length_frames_are_empty_payloads():
    assert good(chain("length_prefixed"), u64(b"", b"")) == [b"", b""]
    assert good(chain("textual_length_prefixed"), b"0 0 1 x") == [b"", b"", b"x"]


def test_a_textual_length_may_have_leading_zeros():
    assert good(chain("textual_length_prefixed"), b"003 abc00000000000000000001 d") == [
        b"abc",
        b"d",
    ]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"+1 a", 0),
        (b"-1 a", 0),
        (b" 1 a", 0),
        (b"1\ta", 1),
        (b"1a", 1),
        (b"1_0 a", 1),
        (b"0x1 a", 1),
        ("٣ abc".encode(), 0),
        (b"1 a\n1 b", 3),
        (b"2 ab  ", 4),
    ],
)
def test_a_textual_length_is_digits_and_one_space(data, position):
    _, error = feed(chain("textual_length_prefixed"), [data])
    assert type(error) is InvalidMessage
    assert f"byte {position}:" in str(error)
    _, error = feed(chain("textual_length_prefixed"), [data[i : i + 1] for i in range(len(data))])
    assert f"byte {position}:" in str(error)


@pytest.mark.parametrize("digits", [b"9" * 20, b"0" * 21, b"18446744073709551616", b"8388609"])
def test_a_textual_length_past_every_limit_is_too_large(digits):
    with pytest.raises(TooLarge):
        chain("textual_length_prefixed").feed(digits + b" ")
    with pytest.raises(TooLarge):
        chain("textual_length_prefixed").feed(digits)


@pytest.mark.parametrize("data", [b"000000000408450000\0", b"101x", b"0" * 20 + b"999 ", b"1 2x"])
def test_a_wrong_textual_length_has_one_reason_however_the_stream_is_cut(data):
    limited = ("textual_length_prefixed", {"max_length": 100})
    reasons = {str(feed(chain(limited), split(data, [cut]))[1]) for cut in range(len(data))}
    assert len(reasons) == 1


def test_a_body_of_frames_is_cut_whole_or_not_at_all():
    assert pieces(cut_length_prefixed(u64(b"a", b"", b"bc"), 10)) == [b"a", b"", b"bc"]
    assert cut_length_prefixed(b"", 10).count == 0
    with pytest.raises(InvalidMessage, match="byte 9: the end came 9 bytes into a frame"):
        cut_length_prefixed(u64(b"a", b"bc")[:-1], 10)
    with pytest.raises(InvalidMessage, match="byte 9: the end came 3 bytes into a frame"):
        cut_length_prefixed(u64(b"a") + b"\0\0\0", 10)
    with pytest.raises(TooLarge):
        cut_length_prefixed(u64(b"a", b"bc"), 1)


def test_a_body_of_too_many_empty_frames_is_refused():
    with pytest.raises(TooLarge, match=f"more than {MAX_BATCH_EVENTS} payloads"):
        cut_length_prefixed(bytes(8 * (MAX_BATCH_EVENTS + 1)), 10)


def test_a_payload_over_the_limit_is_not_sent():
    with pytest.raises(TooLarge, match="cannot be sent"):
        chain(("length_prefixed", {"max_length": 3})).wrap(payloads(b"abc", b"abcd"))
