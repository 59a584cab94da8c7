"""Every frame and every two-phase message, byte for byte; and what is refused."""

from __future__ import annotations

import pytest

from penstock.connector import frames, two_phase
from penstock.connector.frames import (
    NO_REFERENCE,
    Ack,
    Eos,
    Error,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
)
from penstock.connector.two_phase import (
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
)
from penstock.errors import ProtocolError

FRAMES = [
    (
        Hello("v0.0.1", "Dragons", "feed", "one"),
        "0000001d 00 0006 76302e302e31 0007 447261676f6e73 0004 66656564 0003 6f6e65",
    ),
    (Hello("0.0.1", "", "", ""), "0000000e 00 0005 302e302e31 0000 0000 0000"),
    (Ok(500), "00000005 01 000001f4"),
    (Error("no"), "00000005 02 0002 6e6f"),
    (
        Notify(1, b"celsius", 4096),
        "0000001a 03 0000000000000001 0007 63656c73697573 0000000000001000",
    ),
    (
        NotifyAck(True, 1, NO_REFERENCE),
        "00000012 04 01 0000000000000001 ffffffffffffffff",
    ),
    (NotifyAck(False, 1, 0), "00000012 04 00 0000000000000001 0000000000000000"),
    (
        Message(1, 2, -3, b"k", b"payload"),
        "00000023 05 0000000000000001 0000000000000002 fffffffffffffffd 0001 6b 7061796c6f6164",
    ),
    (
        Message(2**64 - 1, 2**64 - 2, 0, None, None),
        "0000001b 05 ffffffffffffffff fffffffffffffffe 0000000000000000 0000",
    ),
    (Ack(7, ()), "00000009 06 00000007 00000000"),
    (
        Ack(1000, ((1, 12), (2, 25))),
        "00000029 06 000003e8 00000002 0000000000000001 000000000000000c 0000000000000002 "
        "0000000000000019",
    ),
    (Restart(None), "00000005 07 00000000"),
    (Restart("10.0.0.1:7100"), "00000012 07 0000000d 31302e302e302e313a37313030"),
    (Eos(513), "00000009 08 0000000000000201"),
]

TWO_PHASE = [
    (ListUncommitted(77), "c9 000000000000004d"),
    (ReplyUncommitted(77, ()), "ca 000000000000004d 00000000"),
    (
        ReplyUncommitted(1, ("f/1", "f/2")),
        "ca 0000000000000001 00000002 0003 662f31 0003 662f32",
    ),
    (
        Phase1("t", (Range(1, 0, 10),)),
        "cb 0001 74 00000001 0000000000000001 0000000000000000 000000000000000a",
    ),
    (Phase1("t", ()), "cb 0001 74 00000000"),
    (Reply("t", True), "cc 0001 74 01"),
    (Reply("t", False), "cc 0001 74 00"),
    (Phase2("t", True), "cd 0001 74 01"),
    (Phase2("tä", False), "cd 0003 74c3a4 00"),
    (WorkersLeft(5, ("w1",)), "ce 0000000000000005 00000001 0002 7731"),
]


@pytest.mark.parametrize(("frame", "wire"), FRAMES, ids=lambda value: str(value)[:40])
def test_a_frame_is_these_bytes_and_they_are_that_frame(frame, wire):
    data = bytes.fromhex(wire)
    assert frames.encode(frame) == data
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    assert frames.decode(data[4], data[5:]) == frame


@pytest.mark.parametrize(("message", "wire"), TWO_PHASE, ids=lambda value: str(value)[:40])
def test_a_two_phase_message_is_these_bytes(message, wire):
    data = bytes.fromhex(wire)
    assert two_phase.encode_payload(message) == data
    assert two_phase.decode_payload(data) == message


def test_a_two_phase_message_travels_on_stream_0_without_id_time_or_key():
    frame = two_phase.encode_frame(Reply("t", True))
    assert frame == bytes.fromhex(
        "00000020 05 0000000000000000 0000000000000000 0000000000000000 0000 cc 0001 74 01"
    )


def test_a_restart_without_a_body_is_one_without_an_address():
    assert frames.decode(7, b"") == Restart(None)
    assert frames.decode(7, bytes(4)) == Restart(None)


def test_empty_key_and_payload_are_absent_and_absent_is_empty():
    absent = frames.encode(Message(1, 1, 0, None, None))
    assert frames.encode(Message(1, 1, 0, b"", b"")) == absent
    assert frames.decode(5, absent[5:]) == Message(1, 1, 0, None, None)


@pytest.mark.parametrize(("frame", "wire"), FRAMES, ids=lambda value: str(value)[:40])
def test_a_frame_that_is_cut_short_or_too_long_is_refused(frame, wire):
    data = bytes.fromhex(wire)
    body = data[5:]
    if not isinstance(frame, Message):
        with pytest.raises(ProtocolError, match="too many"):
            frames.decode(data[4], body + b"\0")
    for end in range(len(body)):
        if isinstance(frame, Message) and end >= 26 + len(frame.key or b""):
            continue  # the payload is whatever is left
        if isinstance(frame, Restart) and end == 0:
            continue
        with pytest.raises(ProtocolError):
            frames.decode(data[4], body[:end])


@pytest.mark.parametrize(("message", "wire"), TWO_PHASE, ids=lambda value: str(value)[:40])
def test_a_two_phase_message_that_is_cut_short_or_too_long_is_refused(message, wire):
    data = bytes.fromhex(wire)
    with pytest.raises(ProtocolError, match="too many"):
        two_phase.decode_payload(data + b"\0")
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            two_phase.decode_payload(data[:end])


@pytest.mark.parametrize("kind", [9, 10, 201, 255])
def test_an_unknown_type_is_refused(kind):
    with pytest.raises(ProtocolError, match=f"type {kind}"):
        frames.decode(kind, b"")


@pytest.mark.parametrize("kind", [0, 5, 200, 207])
def test_an_unknown_two_phase_type_is_refused(kind):
    with pytest.raises(ProtocolError, match=f"type {kind}"):
        two_phase.decode_payload(bytes([kind]))


def test_a_count_that_the_frame_cannot_hold_allocates_nothing():
    with pytest.raises(ProtocolError, match="announces 4294967295 entries"):
        frames.decode(6, bytes(4) + b"\xff" * 4)
    with pytest.raises(ProtocolError, match="announces"):
        two_phase.decode_payload(b"\xca" + bytes(8) + b"\xff" * 4)


def test_a_flag_is_0_or_1_and_a_text_is_utf8():
    with pytest.raises(ProtocolError, match="neither 0 nor 1"):
        frames.decode(4, b"\x02" + bytes(16))
    with pytest.raises(ProtocolError, match="UTF-8"):
        frames.decode(2, b"\x00\x01\xff")


def test_what_does_not_fit_into_a_frame_is_not_encoded_but_a_reason_is_cut():
    for frame in (
        Notify(1, bytes(65536), 0),
        Hello("x" * 65536, "", "", ""),
        Message(1, 1, 0, bytes(65536), b""),
    ):
        with pytest.raises(ProtocolError, match="65536 bytes"):
            frames.encode(frame)
    long = frames.encode(Error("ä" * 40_000))
    assert frames.decode(2, long[5:]) == Error("ä" * 32_767)


def test_a_cookie_is_not_shown():
    assert "secret" not in repr(Hello("v", "secret", "p", "i"))
