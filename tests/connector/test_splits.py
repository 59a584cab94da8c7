"""However a stream of bytes is cut into pieces, each side of each role hears and says the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connector.columns import Messages
from penstock.connector.connection import Connection
from penstock.connector.frames import (
    NO_REFERENCE,
    Ack,
    Eos,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
)
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Participant, Record, Workers
from penstock.connector.receiving import ReceivingConnection
from penstock.connector.sending import SendingConnection
from penstock.connector.sinking import SinkingConnection
from penstock.connector.two_phase import (
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
    encode_frame,
)
from penstock.connector.worker import Worker
from penstock.connector.working import WorkingConnection

HELLO = Hello("v0.0.1", "cookie", "program", "instance")


def data(stream_id: int, payloads: Iterable[bytes]) -> bytes:
    """MESSAGE frames whose ids are offsets, as in the sink role; in the other, any that rise will do."""
    frames, at = b"", 0
    for payload in payloads:
        frames += encode(Message(stream_id, at, 7, b"key", payload or None))
        at += len(payload) + (stream_id != 1)
    return frames


class Party:
    """One side of a connection, that answers what it hears at once."""

    connection: Connection

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.said = b""

    def hear(self, piece: bytes) -> None:
        buffer = bytearray(piece)
        self.feed(buffer)
        self.said += b"".join(map(bytes, self.connection.take()))
        buffer[:] = b"\xaa" * len(buffer)  # it may be reused

    def feed(self, buffer: bytearray) -> None:
        for event in self.connection.feed(buffer):
            self.heard += event.each() if isinstance(event, Messages) else [event]
            self.answer(event)

    def answer(self, event: object) -> None:
        raise NotImplementedError

    @staticmethod
    def script(payloads: list[bytes]) -> bytes:
        """What the other side says."""
        raise NotImplementedError


class Receiving(Party):
    def __init__(self) -> None:
        super().__init__()
        self.connection: ReceivingConnection = ReceivingConnection(
            version="v0.0.1", cookie="cookie"
        )
        self.durable: dict[int, int] = {}

    def answer(self, event: object) -> None:
        match event:
            case Notify(3):
                self.connection.refuse(3)
            case Notify(stream_id):
                self.connection.grant(stream_id, self.durable.get(stream_id))
            case Messages():
                ids = zip(event.stream_ids.tolist(), event.message_ids.tolist(), strict=True)
                self.durable |= dict(ids)
                self.connection.settle(len(event), self.durable.items())
            case Eos(stream_id):
                self.connection.ended(stream_id, self.durable.get(stream_id))
                self.connection.acknowledge()

    @staticmethod
    def script(payloads: list[bytes]) -> bytes:
        notify = encode(Notify(2, b"two", 0)) + encode(Notify(9, b"nine", 0))
        return (
            encode(HELLO)
            + notify
            + data(2, payloads)
            + encode(Notify(3, b"", 0))
            + data(9, payloads)
            + encode(Eos(2))
            + encode(Notify(2, b"two", 0))
            + data(2, payloads)
            + encode(Eos(9))
            + encode(Eos(2))
        )


class Sending(Party):
    def __init__(self) -> None:
        super().__init__()
        self.connection: SendingConnection = SendingConnection()
        self.connection.hello(HELLO)
        self.refused = False

    def answer(self, event: object) -> None:
        match event:
            case Ok():
                self.connection.notify(Notify(2, b"two", 0))
                self.connection.notify(Notify(9, b"nine", 0))
            case NotifyAck(True, stream_id):
                self.connection.messages(stream_id, 2, data(stream_id, [b"a", b"b"]))
                self.connection.end(stream_id)
            case NotifyAck():
                self.refused = True
            case Ack() if self.refused:
                self.refused = False
                self.connection.notify(Notify(9, b"nine", 0))

    @staticmethod
    def script(payloads: list[bytes]) -> bytes:
        return (
            encode(Ok(100))
            + encode(NotifyAck(True, 2, NO_REFERENCE))
            + encode(Ack(3, ((2, 0),)))
            + encode(NotifyAck(False, 9, NO_REFERENCE))
            + b"".join(encode(Ack(len(payload))) for payload in payloads)
            + encode(Ack(0, ((2, 2),)))
            + encode(NotifyAck(True, 9, 5))
            + encode(Restart("h:1"))
            + encode(Ack(7))
        )


class Working(Party):
    def __init__(self) -> None:
        super().__init__()
        self.worker = Worker(HELLO, WorkingConnection())
        self.connection = self.worker.connection
        self.rounds = 0

    def feed(self, buffer: bytearray) -> None:
        for event in self.worker.connection.feed(buffer):
            self.heard.append(event)
            self.worker._handle(event)
            self.answer(event)

    def answer(self, event: object) -> None:
        worker = self.worker
        for transaction in sorted(worker.asks):
            worker.tell(transaction, transaction == "old 1")
        if isinstance(event, Reply):
            worker.tell(event.transaction, event.commit)
        elif worker.ready and self.rounds < 2:
            self.rounds += 1
            worker.connection.data(data(1, [b"a", b"b"]))
            worker.connection.phase1(f"t{self.rounds}", 0, 2)

    @staticmethod
    def script(payloads: list[bytes]) -> bytes:
        return (
            encode(Ok(500))
            + encode_frame(ReplyUncommitted(1, ("old 1", "old 2")))
            + encode(NotifyAck(True, 1, 7))
            + encode_frame(ReplyUncommitted(2))
            + b"".join(encode(Ack(1, ((1, len(payload)),))) for payload in payloads)
            + encode_frame(Reply("t1", True))
            + encode_frame(ReplyUncommitted(3))
            + encode_frame(Reply("t2", False))
            + encode_frame(ReplyUncommitted(4))
        )


class Memory:
    """A store, and what it was told."""

    stages = True

    def __init__(self) -> None:
        self.told: list[object] = []

    def append(self, worker: str, offset: int, messages: Messages) -> None:
        self.told += messages.each()

    def cut(self, worker: str, offset: int) -> None:
        self.told.append(offset)

    def prepare(self, vote: Voted) -> str:
        return ""

    def log(self, record: Record) -> None:
        self.told.append(record)

    def carry_out(self, decision: Decided) -> None:
        self.told.append(decision)


class Sinking(Party):
    def __init__(self) -> None:
        super().__init__()
        self.connection = SinkingConnection(version="v0.0.1", cookie="cookie")
        self.store = Memory()
        self.heard = self.store.told
        self.participant = Participant(self.connection, Workers(self.store))

    def feed(self, buffer: bytearray) -> None:
        self.participant.receive(buffer)

    @staticmethod
    def script(payloads: list[bytes]) -> bytes:
        size = sum(map(len, payloads))
        again = b"".join(
            encode(Message(1, size + number, 0, None, b"x")) for number in range(len(payloads))
        )
        return (
            encode(HELLO)
            + encode_frame(ListUncommitted(1))
            + encode(Notify(1, b"data", 0))
            + data(1, payloads)
            + encode_frame(Phase1("t1", (Range(1, 0, size),)))
            + encode_frame(Phase2("t1", True))
            + encode_frame(ListUncommitted(2))
            + again
            + encode_frame(Phase1("t2", (Range(1, size, size + len(payloads)),)))
            + encode_frame(ListUncommitted(3))
            + encode_frame(Phase2("t2", False))
            + encode_frame(WorkersLeft(4, ("gone",)))
            + encode(Eos(1))
        )


class LateSinking(Sinking):
    """It decides about the worker when all of it has been said."""

    def feed(self, buffer: bytearray) -> None:
        for event in self.connection.feed(buffer):
            assert isinstance(event, Hello)

    def approve(self) -> None:
        ledger = self.participant._workers.connect("instance")
        self.participant._ledger = ledger
        self.participant._handle_all(self.connection.approve())
        self.said += b"".join(map(bytes, self.connection.take()))


PARTIES: list[Callable[[], Party]] = [Receiving, Sending, Working, Sinking, LateSinking]
# Payloads that look like heads of frames are the ones that could mislead whoever looks for those.
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.just(b"\0\0\0\x1b\x05" * 9),
    st.just(b"y" * 700),
)


def after(make: Callable[[], Party], pieces: Iterable[bytes]) -> tuple[list[object], bytes, object]:
    party = make()
    for piece in pieces:
        party.hear(piece)
    if isinstance(party, LateSinking):
        party.approve()
    return party.heard, party.said, party.connection.state


@pytest.mark.parametrize("make", PARTIES)
@given(st.lists(PAYLOADS, max_size=30), st.data())
def test_any_split_gives_the_same_events_and_the_same_answers(make, payloads, chosen):
    script = make.script(payloads)
    cuts = chosen.draw(st.lists(st.integers(0, len(script)), max_size=8).map(sorted))
    pieces = [script[start:end] for start, end in pairwise([0, *cuts, len(script)])]
    assert after(make, pieces) == after(make, [script])


@pytest.mark.parametrize("make", PARTIES)
def test_byte_by_byte_too(make):
    script = make.script([b"a", b"", b"bc" * 300])
    whole = after(make, [script])
    assert after(make, [bytes([byte]) for byte in script]) == whole
    heard, said, _ = whole
    assert len(heard) > 5
    assert b"not allowed" not in said, "the script is one that is kept to"


@pytest.mark.parametrize("make", [Receiving, Sinking])
@given(st.data())
def test_so_does_a_stream_with_a_wrong_byte_in_it_where_it_ends(make, chosen):
    """What was fed before the mistake may be told of or not, with whatever it came with."""
    script = bytearray(make.script([b"a", b"bc"]))
    at = chosen.draw(st.integers(0, len(script) - 1))
    script[at] ^= chosen.draw(st.integers(1, 255))
    cut = chosen.draw(st.integers(0, len(script)))
    *_, whole = after(make, [bytes(script)])
    *_, split = after(make, [bytes(script[:cut]), bytes(script[cut:])])
    assert split == whole
