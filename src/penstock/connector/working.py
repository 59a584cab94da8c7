"""The sink role, our side: Penstock is the worker, and sends to a sink.

Begin with `hello`, then `list_uncommitted`; `notify` once all that the sink names is decided. Events: `Ok`,
`NotifyAck`, `ReplyUncommitted` (decide each transaction it names with `phase2`), `Reply` (the vote),
`Failed`, and frames that old sinks send and a worker may ignore: `Ack`, `Restart`.

Data and PHASE1 may be sent once the connection is `settled`: the sink has said what it holds uncommitted,
and all of it has been decided. PHASE2 is not answered; to know that it arrived, ask again with
`list_uncommitted`: what is sent later is heard later.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.connector.columns import Messages
from penstock.connector.connection import Connection, Event
from penstock.connector.frames import Ack, Frame, Hello, Notify, NotifyAck, Ok, Restart, encode
from penstock.connector.states import SINK_CONNECTION, Side, Signal, State
from penstock.connector.two_phase import (
    CONTROL_STREAM,
    DATA_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Range,
    Reply,
    ReplyUncommitted,
    WorkersLeft,
    decode_payload,
    encode_frame,
)
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.message import Buffer


class WorkingConnection(Connection):
    table = SINK_CONNECTION
    side = Side.SENDER

    def __init__(self, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes)
        self._asked: set[int] = set()  # tags of LIST_UNCOMMITTED that are not yet answered
        self._listed = False
        self._undecided: set[str] = set()

    @property
    def settled(self) -> bool:
        return self._listed and not self._undecided and self.state is State.AWAITING_DATA

    # --- What the worker says -------------------------------------------------------------------

    def hello(self, hello: Hello) -> None:
        self._say(Signal.HELLO, encode(hello))

    def notify(self, point_of_reference: int = 0, name: bytes = b"data") -> None:
        """Ask for the data stream."""
        self._stream(DATA_STREAM).step(Side.SENDER, Signal.NOTIFY)
        self._say(Signal.NOTIFY, encode(Notify(DATA_STREAM, name, point_of_reference)))

    def list_uncommitted(self, tag: int) -> None:
        self._say(Signal.LIST_UNCOMMITTED, encode_frame(ListUncommitted(tag)))
        self._asked.add(tag)

    def data(self, frames: Buffer) -> None:
        """MESSAGE frames of the data stream, encoded already; ids are byte offsets."""
        self._must_be_settled("data")
        self._step_known(Side.SENDER, DATA_STREAM, Signal.MESSAGE)
        self._say(Signal.MESSAGE, frames)

    def phase1(self, transaction: str, start: int, end: int) -> None:
        self._must_be_settled("PHASE1")
        ranges = (Range(DATA_STREAM, start, end),)
        self._say(Signal.PHASE1, encode_frame(Phase1(transaction, ranges)))
        self._undecided.add(transaction)

    def phase2(self, transaction: str, commit: bool) -> None:
        last = self._undecided == {transaction}
        signal = Signal.PHASE2 if last else Signal.PHASE2_OTHER
        self._say(signal, encode_frame(Phase2(transaction, commit)))
        self._undecided.discard(transaction)

    def workers_left(self, tag: int, workers: tuple[str, ...]) -> None:
        self._say(Signal.WORKERS_LEFT, encode_frame(WorkersLeft(tag, workers)))

    def _must_be_settled(self, what: str) -> None:
        if not self._listed:
            raise ProtocolError(f"{what} must wait until the sink has said what is uncommitted")
        if self._undecided:
            names = ", ".join(sorted(self._undecided))
            raise ProtocolError(f"{what} must wait until these are decided: {names}")

    # --- What the sink says ---------------------------------------------------------------------

    def _hear(self, item: Frame | Messages) -> Iterator[Event]:
        match item:
            case Messages():
                for message in item.each():
                    if message.stream_id != CONTROL_STREAM:
                        raise ProtocolError("a sink sends no data")
                    yield from self._hear_two_phase(message.payload or b"")
                return
            case Ok():
                self._machine.step(Side.RECEIVER, Signal.OK)
            case NotifyAck(success, stream_id):
                signal = Signal.NOTIFY_ACK if success else Signal.NOTIFY_NACK
                self._machine.step(Side.RECEIVER, signal)
                self._step_known(Side.RECEIVER, stream_id, signal)
            case Ack(_, streams):
                self._machine.step(Side.RECEIVER, Signal.ACK)
                for stream_id, _ in streams:
                    self._step_known(Side.RECEIVER, stream_id, Signal.ACK)
            case Restart():
                self._machine.step(Side.RECEIVER, Signal.RESTART)
                self._restarted()
            case _:
                raise ProtocolError(f"a sink must not send {type(item).__name__}")
        yield item

    def _hear_two_phase(self, payload: bytes) -> Iterator[Event]:
        message = decode_payload(payload)
        match message:
            case ReplyUncommitted(tag, transactions):
                if tag not in self._asked:
                    raise ProtocolError(f"REPLY_UNCOMMITTED with the tag {tag} answers nothing")
                self._machine.step(
                    Side.RECEIVER, Signal.UNCOMMITTED if transactions else Signal.SETTLED
                )
                self._asked.discard(tag)
                self._listed = True
                self._undecided.update(transactions)
            case Reply():
                self._machine.step(Side.RECEIVER, Signal.REPLY)
            case _:
                raise ProtocolError(f"a sink must not send {type(message).__name__}")
        yield message
