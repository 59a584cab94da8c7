"""The source role, the extension's side: it sends, Penstock receives.

Begin with `hello`. Events: `Ok` (with the first credits), `NotifyAck`, `Ack`, `Restart` (drop the
connection, connect again, and take nothing for granted before the next NOTIFY_ACK), `Failed`.
`credits` says how many more frames may be sent; saying more than that is a ProtocolError.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.connector.connection import Connection, Event
from penstock.connector.frames import (
    Ack,
    Eos,
    Frame,
    Hello,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
)
from penstock.connector.states import SOURCE_CONNECTION, Side, Signal
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.message import Buffer

if TYPE_CHECKING:
    from penstock.connector.columns import Messages


class SendingConnection(Connection):
    table = SOURCE_CONNECTION
    side = Side.SENDER

    def __init__(self, max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES) -> None:
        super().__init__(max_frame_bytes)
        self.credits = 0

    # --- What the extension says ----------------------------------------------------------------

    def hello(self, hello: Hello) -> None:
        self._say(Signal.HELLO, encode(hello))

    def notify(self, notify: Notify) -> None:
        self._spend(1)
        self._stream(notify.stream_id).step(Side.SENDER, Signal.NOTIFY)
        self._say(Signal.NOTIFY, encode(notify))

    def messages(self, stream_id: int, count: int, frames: Buffer) -> None:
        """So many MESSAGE frames of one stream, encoded already."""
        self._spend(count)
        self._step_known(Side.SENDER, stream_id, Signal.MESSAGE)
        self._say(Signal.MESSAGE, frames)

    def end(self, stream_id: int) -> None:
        """EOS. The answer is an ACK that names the stream."""
        self._step_known(Side.SENDER, stream_id, Signal.EOS_MESSAGE)
        self._say(Signal.EOS_MESSAGE, encode(Eos(stream_id)))

    def _spend(self, count: int) -> None:
        if count > self.credits:
            raise ProtocolError(f"{count} frames cost more than the {self.credits} credits left")
        self.credits -= count

    # --- What Penstock says ---------------------------------------------------------------------

    def _hear(self, item: Frame | Messages) -> Iterator[Event]:
        match item:
            case Ok(given):
                self._machine.step(Side.RECEIVER, Signal.OK)
                self.credits += given
            case NotifyAck(success, stream_id):
                signal = Signal.NOTIFY_ACK if success else Signal.NOTIFY_NACK
                self._machine.step(Side.RECEIVER, signal)
                self._step_known(Side.RECEIVER, stream_id, signal)
            case Ack(given, streams):
                self._machine.step(Side.RECEIVER, Signal.ACK)
                for stream_id, _ in streams:
                    self._step_known(Side.RECEIVER, stream_id, Signal.ACK)
                self.credits += given
            case Restart():
                self._machine.step(Side.RECEIVER, Signal.RESTART)
                self._restarted()
            case _:
                raise ProtocolError(f"Penstock does not send {type(item).__name__} here")
        yield item
