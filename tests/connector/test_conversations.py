"""Every allowed and every forbidden step, from every side, byte for byte as recorded."""

from __future__ import annotations

import pytest

from penstock.connector.columns import Messages
from penstock.connector.connection import Failed
from penstock.connector.decoder import Decoder
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
    encode,
)
from penstock.connector.receiving import ReceivingConnection
from penstock.connector.sending import SendingConnection
from penstock.connector.sinking import SinkingConnection
from penstock.connector.states import OVER, QUEUES, STREAM, Side, Signal, State
from penstock.connector.two_phase import (
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    ReplyUncommitted,
    WorkersLeft,
    decode_payload,
    encode_frame,
)
from penstock.connector.worker import Worker
from penstock.connector.working import WorkingConnection
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FIRST_FRAME_BYTES, MAX_CONNECTOR_STREAMS
from tests.connector.conversations import (
    HELLO,
    MESSAGE,
    RECORDED,
    WIRE,
    Conversation,
    conversations,
)

ALL = list(conversations())


def heard(connection: object, data: bytes) -> list[object]:
    return list(connection.feed(data))  # type: ignore[attr-defined]


def sent(connection: object) -> bytes:
    return b"".join(bytes(piece) for piece in connection.take())  # type: ignore[attr-defined]


def test_the_conversations_are_byte_for_byte_those_on_record():
    assert "\n".join(one.recorded for one in ALL) == RECORDED.read_text()


def test_every_state_and_every_row_of_every_table_is_tried_by_some_side():
    tried = {(id(one.table), one.state, one.side, one.signal) for one in ALL}
    tables = {id(one.table): one.table for one in ALL}
    # OK follows HELLO at once, and an OK that leaves something unsettled looks like any other.
    seldom = {(State.HANDSHAKE, Side.RECEIVER, Signal.CLOSED)}
    for key, table in tables.items():
        for state, rows in table.items():
            for side, signal in rows:
                if signal is Signal.CLOSED or (state, side, signal) in seldom:
                    continue
                assert (key, state, side, signal) in tried, (state, side, signal)


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.name)
def test_a_step_is_taken_or_refused_as_its_table_says(one: Conversation):
    own = one.side is one.connection.side
    allowed = one.table[one.state].get((one.side, one.signal))
    if one.table is STREAM and one.signal is Signal.RESTART and one.state is State.START:
        allowed = State.START  # of a stream nobody asked for there is nothing to end
    if one.state in OVER:
        # What still arrives is dropped, and nothing more is sent.
        assert one.after is one.state
        assert not any(line.startswith(">") for line in one.last)
    elif not own and one.state in QUEUES and one.part == "sinking" and one.signal != Signal.ERROR:
        assert one.after is one.state
        assert len(one.last) == 1
    elif allowed is not None:
        if one.signal is Signal.HELLO and one.part == "receiving":
            allowed = State.STREAMING  # OK is on its way
        assert one.after is allowed
        assert not any(line.startswith("!") for line in one.last)
    elif own and one.signal is Signal.RESTART:
        # Where there is nobody to tell, it is only the end.
        assert one.connection.state is State.DISCONNECTED
    elif own:
        assert one.after is one.state
        assert one.last[0].startswith("! ")
    else:
        assert one.connection.state is State.ERROR
        assert one.connection.closing
        assert bytes.fromhex(one.last[-1][2:])[4] == 2, "the answer is an ERROR frame"


# --- Whole conversations of both sides ------------------------------------------------------------


def receiving(**options: object) -> ReceivingConnection:
    return ReceivingConnection(version="v0.0.1", cookie="cookie", **options)  # type: ignore[arg-type]


def test_a_source_sends_and_is_acknowledged():
    source, penstock = SendingConnection(), receiving(initial_credits=3)
    source.hello(HELLO)
    assert heard(penstock, sent(source)) == [HELLO]
    assert heard(source, sent(penstock)) == [Ok(3)]
    source.notify(Notify(9, b"nine", 0))
    assert heard(penstock, sent(source)) == [Notify(9, b"nine", 0)]
    penstock.grant(9, None)
    assert heard(source, sent(penstock)) == [NotifyAck(True, 9, NO_REFERENCE)]
    source.messages(9, 2, encode(Message(9, 5)) + encode(Message(9, 8, 0, None, b"x")))
    assert source.credits == 0
    (messages,) = heard(penstock, sent(source))
    assert messages.each() == [Message(9, 5), Message(9, 8, 0, None, b"x")]
    with pytest.raises(ProtocolError, match="credits"):
        source.messages(9, 1, encode(Message(9, 9)))
    penstock.settle(2, [(9, 8)])
    penstock.acknowledge()
    assert heard(source, sent(penstock)) == [Ack(3, ((9, 8),))]
    assert source.credits == 3
    source.end(9)
    assert heard(penstock, sent(source)) == [Eos(9)]
    penstock.ended(9, 8)
    penstock.acknowledge()
    assert heard(source, sent(penstock)) == [Ack(0, ((9, 8),))]
    source.notify(Notify(9, b"nine", 8))
    assert heard(penstock, sent(source)) == [Notify(9, b"nine", 8)]


def test_credits_are_withheld_and_then_given_back():
    penstock = receiving(initial_credits=3)
    heard(penstock, WIRE[Signal.HELLO] + WIRE[Signal.NOTIFY])
    penstock.grant(1, None)
    heard(penstock, MESSAGE)
    sent(penstock)
    penstock.settle(1, [(1, 0)])
    penstock.acknowledge(withhold=True)
    assert sent(penstock) == encode(Ack(0, ((1, 0),)))
    penstock.acknowledge(withhold=True)
    assert sent(penstock) == b""
    penstock.acknowledge()
    assert sent(penstock) == encode(Ack(2))


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello("0.0.1", "cookie", "p", "i"), "version '0.0.1' is not spoken here; use 'v0.0.1'"),
        (Hello("v0.0.1", "", "p", "i"), "the cookie is not the right one"),
        (Hello("v0.0.1", "cooki", "p", "i"), "the cookie is not the right one"),
    ],
)
def test_version_and_cookie_must_agree_exactly(hello, reason):
    for connection in (receiving(), SinkingConnection(version="v0.0.1", cookie="cookie")):
        assert heard(connection, encode(hello)) == [Failed(reason, ours=True)]
        assert sent(connection) == encode(Error(reason))
        assert connection.closing


def test_an_empty_cookie_meets_an_empty_cookie():
    penstock = ReceivingConnection(version="v0.0.1", cookie="")
    assert heard(penstock, encode(Hello("v0.0.1", "", "p", "i")))[0] == Hello(
        "v0.0.1", "", "p", "i"
    )


def test_a_restart_terminates_every_stream_on_both_sides():
    source, penstock = SendingConnection(), receiving()
    source.hello(HELLO)
    heard(penstock, sent(source))
    heard(source, sent(penstock))
    for stream in (1, 2):
        source.notify(Notify(stream, b"", 0))
    heard(penstock, sent(source))
    penstock.grant(1, 4)
    heard(source, sent(penstock))
    penstock.restart("other:7")
    assert heard(source, sent(penstock)) == [Restart("other:7")]
    for side in (source, penstock):
        assert side.closing
        assert side.state is State.DISCONNECTED
        assert side.stream_state(1) is State.TERMINATED
        assert side.stream_state(2) is State.TERMINATED
    assert heard(penstock, MESSAGE) == []
    assert sent(penstock) == b""


def test_messages_of_several_streams_are_refused_if_one_is_not_open():
    penstock = receiving()
    heard(penstock, WIRE[Signal.HELLO] + WIRE[Signal.NOTIFY])
    penstock.grant(1, None)
    sent(penstock)
    (failed,) = heard(penstock, MESSAGE + encode(Message(2, 0)))
    assert "stream 2 is start" in failed.reason


def test_a_connection_has_a_limit_of_streams_and_ended_ones_make_room():
    penstock = receiving()
    heard(penstock, WIRE[Signal.HELLO])
    for stream in range(MAX_CONNECTOR_STREAMS):
        heard(penstock, encode(Notify(stream, b"", 0)))
        penstock.grant(stream, None)
    heard(penstock, encode(Eos(3)))
    penstock.ended(3, None)
    penstock.acknowledge()
    assert heard(penstock, encode(Notify(2**60, b"", 0))) == [Notify(2**60, b"", 0)]
    (failed,) = heard(penstock, encode(Notify(2**60 + 1, b"", 0)))
    assert f"at most {MAX_CONNECTOR_STREAMS} streams" in failed.reason


# --- The sink role --------------------------------------------------------------------------------


def sink() -> SinkingConnection:
    return SinkingConnection(version="v0.0.1", cookie="cookie")


def test_a_round_of_two_phase_commit():
    worker, other = WorkingConnection(), sink()
    worker.hello(HELLO)
    assert heard(other, sent(worker)) == [HELLO]
    list(other.approve())
    assert heard(worker, sent(other)) == [Ok(500)]
    worker.list_uncommitted(1)
    assert heard(other, sent(worker)) == [ListUncommitted(1)]
    other.reply_uncommitted(1, [])
    assert heard(worker, sent(other)) == [ReplyUncommitted(1)]
    assert worker.settled
    worker.notify()
    assert heard(other, sent(worker)) == [Notify(1, b"data", 0)]
    other.grant(1, 0)
    assert heard(worker, sent(other)) == [NotifyAck(True, 1, 0)]
    worker.data(MESSAGE)
    worker.phase1("t", 0, 3)
    data, phase1 = heard(other, sent(worker))
    assert data.each() == [Message(1, 0, 0, None, b"abc")]
    assert phase1 == Phase1("t", (Range(1, 0, 3),))
    other.vote("t", True)
    (vote,) = heard(worker, sent(other))
    assert vote.commit
    worker.phase2("t", True)
    assert heard(other, sent(worker)) == [Phase2("t", True)]
    assert worker.state is other.state is State.AWAITING_DATA


def test_frames_before_the_approval_queue_and_are_heard_after_it_in_order():
    other = sink()
    buffer = bytearray(
        encode(HELLO) + WIRE[Signal.NOTIFY] + WIRE[Signal.LIST_UNCOMMITTED] + MESSAGE
    )
    assert heard(other, buffer) == [HELLO]
    buffer[:] = bytes(len(buffer))
    assert heard(other, WIRE[Signal.PHASE1]) == []
    events = list(other.approve())
    # NOTIFY is not yet answered, so data may not come: a worker has to wait for that one answer.
    assert events[:2] == [Notify(1, b"one", 0), ListUncommitted(5)]
    assert isinstance(events[2], Failed)


def test_data_that_queued_are_copied():
    other = sink()
    heard(other, encode(HELLO))
    buffer = bytearray(MESSAGE)
    heard(other, buffer)
    buffer[:] = bytes(len(buffer))
    (failed,) = list(other.approve())
    assert "stream 1 is start" in failed.reason


@pytest.mark.parametrize("make", [ReceivingConnection, SinkingConnection])
def test_whoever_has_not_said_hello_is_given_little_room(make):
    over = (MAX_CONNECTOR_FIRST_FRAME_BYTES + 1).to_bytes(4, "big")
    [failed] = heard(make(version="v", cookie=""), over + b"\0")
    assert f"over the limit of {MAX_CONNECTOR_FIRST_FRAME_BYTES}" in failed.reason
    longest = "x" * 65_535
    greeted = make(version=longest, cookie=longest)
    large = encode(Message(1, 0, 0, None, bytes(MAX_CONNECTOR_FIRST_FRAME_BYTES)))
    hello = Hello(longest, longest, longest, longest)
    assert heard(greeted, encode(hello) + large[:1000])[0] == hello
    assert not greeted.closing


def test_the_queue_before_approval_has_a_limit():
    other = SinkingConnection(version="v0.0.1", cookie="cookie", max_frame_bytes=1000)
    heard(other, encode(HELLO))
    (failed,) = heard(other, encode(Message(1, 0, 0, None, bytes(600))) * 2)
    assert "before the worker was approved" in failed.reason


def test_a_worker_settles_before_it_sends():
    worker = WorkingConnection()
    worker.hello(HELLO)
    heard(worker, WIRE[Signal.OK])
    worker.notify()
    heard(worker, WIRE[Signal.NOTIFY_ACK])
    with pytest.raises(ProtocolError, match="must wait until the sink has said"):
        worker.data(MESSAGE)
    worker.list_uncommitted(5)
    heard(worker, encode_frame(ReplyUncommitted(5, ("a", "b"))))
    with pytest.raises(ProtocolError, match="until these are decided: a, b"):
        worker.phase1("c", 0, 0)
    worker.phase2("a", True)
    assert not worker.settled
    worker.phase2("b", False)
    assert worker.settled
    worker.data(MESSAGE)


def said(worker: Worker) -> list[object]:
    """What the worker sends, as a sink reads it."""
    found: list[object] = []
    for item in Decoder().feed(sent(worker.connection)):
        found += map(two_phase, item.each()) if isinstance(item, Messages) else [item]
    return found


def two_phase(message: Message) -> object:
    return decode_payload(message.payload or b"")


def test_a_worker_asks_and_settles_before_it_opens_its_stream():
    worker = Worker(HELLO, point_of_reference=7)
    assert said(worker) == [HELLO]
    worker.receive(WIRE[Signal.OK])
    assert said(worker) == [ListUncommitted(1)]
    worker.receive(encode_frame(ReplyUncommitted(1, ("a", "b"))))
    assert said(worker) == []
    assert worker.asks == {"a", "b"}
    worker.tell("b", False)
    assert said(worker) == [Phase2("b", False)]
    worker.tell("a", True)
    assert said(worker) == [Phase2("a", True), ListUncommitted(2), Notify(1, b"data", 7)]
    worker.receive(encode(NotifyAck(True, 1, 9)))
    assert not worker.ready, "the sink may not have heard yet"
    worker.receive(encode_frame(ReplyUncommitted(2)))
    assert worker.ready
    assert worker.reference == 9
    assert said(worker) == []


def test_a_worker_that_has_nothing_to_settle_opens_its_stream_after_the_answer():
    worker = Worker(HELLO)
    worker.receive(WIRE[Signal.OK])
    assert said(worker) == [HELLO, ListUncommitted(1)]
    worker.receive(encode_frame(ReplyUncommitted(1)))
    assert said(worker) == [Notify(1, b"data", 0)]
    worker.left(("gone",))
    assert said(worker) == [WorkersLeft(2, ("gone",)), ListUncommitted(3)]
    worker.receive(WIRE[Signal.NOTIFY_ACK] + encode_frame(ReplyUncommitted(3)))
    assert worker.ready
    assert said(worker) == []


def test_a_reply_to_a_question_that_was_not_asked_is_refused():
    worker = WorkingConnection()
    worker.hello(HELLO)
    heard(worker, WIRE[Signal.OK])
    (failed,) = heard(worker, WIRE[Signal.SETTLED])
    assert "answers nothing" in failed.reason


def test_a_sink_with_an_undecided_transaction_takes_no_data():
    other = sink()
    heard(other, encode(HELLO))
    other.approve(["t"])
    heard(other, WIRE[Signal.NOTIFY])
    other.grant(1, 0)
    heard(other, encode_frame(Phase2("unknown", True)))
    assert other.state is State.AWAITING_PHASE2
    (failed,) = heard(other, MESSAGE)
    assert "awaiting phase 2" in failed.reason


def test_a_sink_takes_data_on_stream_1_only():
    other = sink()
    heard(other, encode(HELLO))
    other.approve()
    (failed,) = heard(other, encode(Notify(2, b"", 0)))
    assert "stream 2 is not taken here" in failed.reason
