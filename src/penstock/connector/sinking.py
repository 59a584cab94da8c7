"""The sink role, the extension's side: Penstock's workers send, the extension receives.

Events: `Hello` (answer with `approve` or `deny`; until then later frames queue), `Notify` (answer with `grant`), `Messages`
of data, `ListUncommitted` (answer with `reply_uncommitted`), `Phase1` (answer with `vote`), `Phase2`,
`WorkersLeft`, `Eos` (answer with `ended`), `Failed`. Data and two-phase messages come in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from penstock.connector.columns import Messages
from penstock.connector.connection import Connection, Event, Failed
from penstock.connector.frames import Ack, Eos, Frame, Hello, Notify, NotifyAck, Ok, encode
from penstock.connector.receiving import check_hello
from penstock.connector.states import QUEUES, SINK_CONNECTION, Side, Signal
from penstock.connector.two_phase import (
    CONTROL_STREAM,
    DATA_STREAM,
    ListUncommitted,
    Phase1,
    Phase2,
    Reply,
    ReplyUncommitted,
    TwoPhase,
    WorkersLeft,
    decode_payload,
    encode_frame,
)
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES

CREDITS = 500
"""Not used in this role; what sinks in the field say."""


class SinkingConnection(Connection):
    table = SINK_CONNECTION
    side = Side.RECEIVER

    def __init__(
        self, *, version: str, cookie: str, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES
    ) -> None:
        super().__init__(max_frame_bytes)
        self._version = version
        self._cookie = cookie
        self._max_queued_bytes = max_frame_bytes
        self._queue: list[Frame | Messages] = []
        self._undecided: set[str] = set()

    # --- What the worker says -------------------------------------------------------------------

    def _hear(self, item: Frame | Messages) -> Iterator[Event]:
        if self.state in QUEUES:
            self._keep(item)
            return
        match item:
            case Messages():
                yield from self._hear_messages(item)
                return
            case Hello():
                self._machine.step(Side.SENDER, Signal.HELLO)
                check_hello(item, self._version, self._cookie)
            case Notify(stream_id):
                self._machine.step(Side.SENDER, Signal.NOTIFY)
                if stream_id != DATA_STREAM:
                    raise ProtocolError(f"stream {stream_id} is not taken here; data use stream 1")
                self._stream(stream_id).step(Side.SENDER, Signal.NOTIFY)
            case Eos(stream_id):
                self._machine.step(Side.SENDER, Signal.EOS_MESSAGE)
                self._step_known(Side.SENDER, stream_id, Signal.EOS_MESSAGE)
            case _:
                raise ProtocolError(f"a worker must not send {type(item).__name__}")
        yield item

    def _keep(self, item: Frame | Messages) -> None:
        """Until the worker is approved. What was fed may be reused, so data are copied."""
        if isinstance(item, Messages):
            self._max_queued_bytes -= item.size_bytes
            item = item.copy()
        self._max_queued_bytes -= 64
        if self._max_queued_bytes < 0:
            raise ProtocolError("too much was sent before the worker was approved")
        self._queue.append(item)

    def _hear_messages(self, messages: Messages) -> Iterator[Event]:
        ids = messages.stream_ids
        at = 0
        for control in np.flatnonzero(ids == CONTROL_STREAM).tolist():
            yield from self._hear_data(messages.select(slice(at, control)), ids[at:control])
            one = messages.select(slice(control, control + 1))
            yield from self._hear_two_phase(one.payloads()[0].as_py())
            at = control + 1
        yield from self._hear_data(messages.select(slice(at, len(ids))), ids[at:])

    def _hear_data(self, messages: Messages, ids: npt.NDArray[np.uint64]) -> Iterator[Event]:
        if not len(messages):
            return
        self._machine.step(Side.SENDER, Signal.MESSAGE)
        for stream_id in np.unique(ids).tolist():
            self._step_known(Side.SENDER, stream_id, Signal.MESSAGE)
        yield messages

    def _hear_two_phase(self, payload: bytes) -> Iterator[Event]:
        message = decode_payload(payload)
        self._machine.step(Side.SENDER, self._signal(message))
        match message:
            case Phase1(transaction):
                self._undecided.add(transaction)
            case Phase2(transaction):
                self._undecided.discard(transaction)
        yield message

    def _signal(self, message: TwoPhase) -> Signal:
        match message:
            case ListUncommitted():
                return Signal.LIST_UNCOMMITTED
            case Phase1():
                return Signal.PHASE1
            case Phase2(transaction):
                last = self._undecided == {transaction}
                return Signal.PHASE2 if last else Signal.PHASE2_OTHER
            case WorkersLeft():
                return Signal.WORKERS_LEFT
        raise ProtocolError(f"a worker must not send {type(message).__name__}")

    # --- What the sink says ---------------------------------------------------------------------

    def approve(self, undecided: Iterable[str] = ()) -> Iterator[Event]:
        """Take the worker on. `undecided` are its transactions that were voted on and never decided.

        Gives the events of what was sent meanwhile, as `feed` does.
        """
        self._undecided.update(undecided)
        self._say(Signal.OK_UNSETTLED if self._undecided else Signal.OK, encode(Ok(CREDITS)))
        queue, self._queue = self._queue, []
        return self._hear_queue(queue)

    def _hear_queue(self, queue: list[Frame | Messages]) -> Iterator[Event]:
        for item in queue:
            try:
                yield from self._hear(item)
            except ProtocolError as error:
                yield self.fail(str(error))
            if self._machine.over:
                return

    def deny(self, reason: str) -> Failed:
        """Refuse the worker: its name is already connected, say."""
        return self.fail(reason)

    def grant(self, stream_id: int, point_of_reference: int) -> None:
        self._step_known(Side.RECEIVER, stream_id, Signal.NOTIFY_ACK)
        self._say(Signal.NOTIFY_ACK, encode(NotifyAck(True, stream_id, point_of_reference)))

    def reply_uncommitted(self, tag: int, transactions: Iterable[str]) -> None:
        named = tuple(transactions)
        signal = Signal.UNCOMMITTED if named else Signal.SETTLED
        self._say(signal, encode_frame(ReplyUncommitted(tag, named)))

    def vote(self, transaction: str, commit: bool) -> None:
        self._say(Signal.REPLY, encode_frame(Reply(transaction, commit)))

    def ended(self, stream_id: int, point_of_reference: int) -> None:
        """The answer to EOS, with the credit that programs in the field expect."""
        self._step_known(Side.RECEIVER, stream_id, Signal.ACK)
        self._say(Signal.ACK, encode(Ack(1, ((stream_id, point_of_reference),))))
