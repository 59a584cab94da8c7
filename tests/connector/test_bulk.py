"""Many MESSAGE frames at once, and any split of the bytes: always the same events."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connector import columns
from penstock.connector.columns import Messages, encode_messages, find_messages
from penstock.connector.decoder import Decoder, Malformed
from penstock.connector.frames import Ack, Eos, Error, Frame, Hello, Message, Notify, Ok, encode
from penstock.errors import ProtocolError

U64 = st.integers(0, 2**64 - 1)
# Payloads that look like heads of MESSAGE frames are the ones that could mislead the search.
LIKE_HEADS = st.lists(
    st.sampled_from([b"\0\0\0\x1b\x05", b"\0\0\0\x40\x05" + bytes(26), b"\x05", bytes(4), b"x"]),
    max_size=6,
).map(b"".join)
PAYLOADS = st.one_of(st.binary(max_size=50), LIKE_HEADS, st.just(b"y" * 700))
MESSAGES = st.builds(
    Message,
    U64,
    U64,
    st.integers(-(2**63), 2**63 - 1),
    st.one_of(st.none(), st.binary(min_size=1, max_size=5)),
    PAYLOADS.map(lambda data: data or None),
)
OTHERS = st.one_of(
    st.builds(Ok, st.integers(0, 2**32 - 1)),
    st.builds(Eos, U64),
    st.builds(Error, st.text(max_size=5)),
    st.builds(Notify, U64, st.binary(max_size=5), U64),
    st.builds(Hello, *[st.text(max_size=4)] * 4),
    st.builds(Ack, st.integers(0, 9), st.lists(st.tuples(U64, U64), max_size=2).map(tuple)),
)
STREAMS = st.lists(st.one_of(MESSAGES, MESSAGES, OTHERS, st.lists(MESSAGES, min_size=20)))


def flat(stream: list[Frame | list[Message]]) -> list[Frame]:
    found: list[Frame] = []
    for item in stream:
        found += item if isinstance(item, list) else [item]
    return found


def events(decoder: Decoder, pieces: list[bytes]) -> list[object]:
    found: list[object] = []
    for piece in pieces:
        buffer = bytearray(piece)
        for event in decoder.feed(buffer):
            found += event.each() if isinstance(event, Messages) else [event]
        # The caller's buffer may be reused: nothing that was given may point into it.
        buffer[:] = b"\xaa" * len(buffer)
    return found


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(bounds)]


@settings(max_examples=60, deadline=None)
@given(STREAMS, st.lists(st.integers(0, 10**6), max_size=20))
def test_any_split_of_the_bytes_gives_the_frames_that_went_in(stream, places):
    sent = flat(stream)
    data = b"".join(map(encode, sent))
    assert events(Decoder(), [data]) == sent
    assert events(Decoder(), cut(data, places)) == sent


@given(
    st.lists(st.one_of(MESSAGES, OTHERS), max_size=20), st.lists(st.integers(0, 20_000), max_size=9)
)
def test_reading_behind_an_unfinished_frame_gives_the_same(stream, places):
    sent = flat(stream)
    pieces = cut(b"".join(map(encode, sent)), places)
    for room in (64, 1 << 20):  # it leaves too little of the smaller one, mostly
        decoder, buffer = Decoder(), memoryview(bytearray(room))
        found: list[object] = []
        for piece in pieces:
            while piece:
                decoder.lead(buffer)  # nothing came then: it is asked again
                led = decoder.lead(buffer)
                read, piece = piece[: room - led], piece[room - led :]
                buffer[led : led + len(read)] = read
                for event in decoder.feed(buffer[: led + len(read)], led):
                    found += event.each() if isinstance(event, Messages) else [event]
        assert found == sent


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(MESSAGES, OTHERS), max_size=8))
def test_one_byte_at_a_time_gives_the_same(stream):
    data = b"".join(map(encode, stream))
    assert events(Decoder(), [bytes([byte]) for byte in data]) == stream


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 10**6), max_size=10))
def test_any_bytes_split_anyhow_fail_in_the_same_place_for_the_same_reason(data, places):
    assert events(Decoder(200), cut(data, places)) == events(Decoder(200), [data])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**64 - 1),
    st.lists(
        st.tuples(
            st.integers(0, 2**63 - 1),
            st.integers(-(2**63), 2**63 - 1),
            st.one_of(st.none(), st.binary(min_size=1, max_size=9)),
            PAYLOADS,
        ),
        max_size=40,
    ),
)
def test_encoding_at_once_is_encoding_one_by_one(stream_id, rows):
    ids, times, keys, payloads = zip(*rows, strict=True) if rows else ((), (), (), ())
    at_once = encode_messages(
        stream_id,
        np.array(ids, np.uint64),
        pa.array(payloads, pa.binary()),
        event_times=np.array(times, np.int64),
        keys=pa.array(keys, pa.binary()),
    )
    one_by_one = b"".join(
        encode(Message(stream_id, *row)) for row in zip(ids, times, keys, payloads, strict=True)
    )
    assert bytes(at_once) == one_by_one


def small(count: int, size: int = 20) -> list[Message]:
    return [Message(1, i, 0, None, bytes([i % 256]) * size) for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000, 10_000])
@pytest.mark.parametrize("size", [1, 20, 500])
def test_runs_of_all_lengths_are_found_whole(count, size):
    sent = small(count, size)
    data = b"".join(map(encode, sent))
    found = find_messages(memoryview(data + encode(Eos(1))), 0, 1 << 24)
    assert found.each() == sent


def test_a_large_frame_among_many_small_ones_is_found():
    sent = [*small(5000), Message(1, 5000, 0, None, b"z" * 300_000), *small(5000)]
    data = b"".join(map(encode, sent))
    assert events(Decoder(), [data]) == sent


def test_payloads_full_of_heads_do_not_mislead():
    head = encode(Message(9, 9, 0, None, b"inner"))
    sent = [Message(1, i, 0, None, head * (i % 4)) for i in range(1, 4000)]
    sent = [m if m.payload else Message(1, m.message_id, 0, None, b"\0\0\0\x1c\x05") for m in sent]
    assert events(Decoder(), [b"".join(map(encode, sent))]) == sent


def test_columns_say_what_the_frames_say():
    sent = [
        Message(7, 10, 5, b"key", b"payload"),
        Message(7, 20, -5, None, None),
        Message(8, 30, 0, b"k", b"x"),
    ]
    (messages,) = Decoder().feed(b"".join(map(encode, sent)))
    assert isinstance(messages, Messages)
    assert messages.stream_ids.tolist() == [7, 7, 8]
    assert messages.message_ids.tolist() == [10, 20, 30]
    assert messages.event_times.tolist() == [5, -5, 0]
    assert messages.keys().to_pylist() == [b"key", None, b"k"]
    assert messages.payloads().to_pylist() == [b"payload", b"", b"x"]
    assert messages.payload_lengths.tolist() == [7, 0, 1]
    seven = messages.select(messages.stream_ids == 7)
    assert seven.each() == sent[:2]
    outer = messages.select(np.array([True, False, True]))
    assert outer.each() == [sent[0], sent[2]]
    assert outer.frames() == encode(sent[0]) + encode(sent[2])
    assert outer.copy().each() == outer.each()


def test_a_frame_over_the_limit_is_refused_before_it_is_kept():
    decoder = Decoder(1000)
    assert decoder.feed((1001).to_bytes(4, "big") + b"\x05") == [
        Malformed("a frame of 1001 bytes is over the limit of 1000")
    ]
    assert decoder.held_bytes == 0
    assert decoder.feed(encode(Ok(1))) == []


def test_what_came_before_a_broken_frame_is_given_first():
    sent = small(30)
    broken = bytearray(encode(Message(1, 30, 0, b"k", b"")))
    broken[4 + 25 : 4 + 27] = b"\xff\xff"  # a key that reaches past the end
    found = events(Decoder(), [b"".join(map(encode, sent)) + broken + encode(Ok(1))])
    assert found[:-1] == sent
    assert isinstance(found[-1], Malformed)


@pytest.mark.parametrize("wire", [bytes(4) + b"\0", b"\0\0\0\x01\x63", b"\0\0\0\x02\x05\0"])
def test_frames_without_type_of_no_known_type_or_too_short_are_refused(wire):
    (event,) = Decoder().feed(wire)
    assert isinstance(event, Malformed)


def test_an_unfinished_frame_is_kept_and_nothing_more():
    decoder = Decoder()
    data = encode(Message(1, 1, 0, None, bytes(100_000)))
    for at in range(0, len(data) - 1, 1000):
        assert decoder.feed(data[at : min(at + 1000, len(data) - 1)]) == []
    assert decoder.held_bytes == len(data) - 1
    (messages,) = decoder.feed(data[-1:])
    assert len(messages) == 1
    assert decoder.held_bytes == 0


def test_a_key_that_does_not_fit_is_refused():
    with pytest.raises(ProtocolError, match="65535"):
        encode_messages(
            1,
            np.arange(1),
            pa.array([b""], pa.binary()),
            keys=pa.array([bytes(70_000)], pa.binary()),
        )


def test_the_search_is_used_for_small_frames_only(monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(columns, "_search", refuse)
    large = b"".join(map(encode, small(100, 5000)))
    assert len(find_messages(memoryview(large), 0, 1 << 24)) == 100
    with pytest.raises(AssertionError, match="searched"):
        find_messages(memoryview(b"".join(map(encode, small(100)))), 0, 1 << 24)
