"""Every side of every connection, brought into every state, hears and says everything there is.

Each conversation is recorded byte for byte in `transcripts.txt`: `<` was fed, `>` was sent, and at the end
is the state. `python -m tests.connector.conversations` writes the file anew; look at what changed before
you keep it: programs in the field depend on these bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.connector.connection import Connection
from penstock.connector.frames import (
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
from penstock.connector.states import STREAM, Side, Signal, State, Table
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
from penstock.connector.working import WorkingConnection
from penstock.errors import ProtocolError

RECORDED = Path(__file__).with_name("transcripts.txt")

HELLO = Hello("v0.0.1", "cookie", "program", "instance")
MESSAGE = encode(Message(1, 0, 0, None, b"abc"))
WIRE: dict[Signal, bytes] = {
    Signal.HELLO: encode(HELLO),
    Signal.OK: encode(Ok(500)),
    Signal.ERROR: encode(Error("no")),
    Signal.NOTIFY: encode(Notify(1, b"one", 0)),
    Signal.NOTIFY_ACK: encode(NotifyAck(True, 1, 7)),
    Signal.NOTIFY_NACK: encode(NotifyAck(False, 1, 7)),
    Signal.MESSAGE: MESSAGE,
    Signal.ACK: encode(Ack(1, ((1, 7),))),
    Signal.RESTART: encode(Restart("h:1")),
    Signal.EOS_MESSAGE: encode(Eos(1)),
    Signal.LIST_UNCOMMITTED: encode_frame(ListUncommitted(5)),
    Signal.UNCOMMITTED: encode_frame(ReplyUncommitted(5, ("t",))),
    Signal.SETTLED: encode_frame(ReplyUncommitted(5)),
    Signal.PHASE1: encode_frame(Phase1("t", (Range(1, 0, 3),))),
    Signal.REPLY: encode_frame(Reply("t", True)),
    Signal.PHASE2: encode_frame(Phase2("t", True)),
    Signal.PHASE2_OTHER: encode_frame(Phase2("other", True)),
    Signal.WORKERS_LEFT: encode_frame(WorkersLeft(5, ("w",))),
}
Do = Callable[[Any], None]


@dataclass
class Recorder:
    connection: Any
    lines: list[str] = field(default_factory=list)

    def hear(self, data: bytes) -> None:
        self.lines.append("< " + data.hex())
        list(self.connection.feed(data))
        self._sent()

    def say(self, do: Do) -> None:
        try:
            do(self.connection)
        except ProtocolError as error:
            self.lines.append(f"! {error}")
        self._sent()

    def _sent(self) -> None:
        out = b"".join(bytes(piece) for piece in self.connection.take())
        if out:
            self.lines.append("> " + out.hex())


@dataclass
class Part:
    """One side of one role: how to make it, to bring it into a state, and to make it speak."""

    make: Callable[[], Connection]
    paths: dict[State, list[bytes | Do]]
    says: dict[Signal, Do]
    # The path that leads to each state of stream 1; empty if it was never asked for.
    streams: dict[State, list[bytes | Do]] = field(default_factory=dict)


_RECEIVING = Part(
    lambda: ReceivingConnection(version="v0.0.1", cookie="cookie", initial_credits=500),
    {
        State.CONNECTED: [],
        # OK follows HELLO at once: nobody is ever seen in the handshake from this side.
        State.STREAMING: [WIRE[Signal.HELLO]],
        State.ERROR: [WIRE[Signal.ERROR]],
        State.DISCONNECTED: [lambda c: c.disconnected()],
    },
    {
        Signal.NOTIFY_ACK: lambda c: c.grant(1, 7),
        Signal.NOTIFY_NACK: lambda c: c.refuse(1),
        Signal.RESTART: lambda c: c.restart("h:1"),
        Signal.ERROR: lambda c: c.fail("no"),
        Signal.CLOSED: lambda c: c.disconnected(),
    },
    {
        State.START: [],
        State.NOTIFY_SENT: [WIRE[Signal.NOTIFY]],
        State.OPEN: [WIRE[Signal.NOTIFY], lambda c: c.grant(1, 7)],
        State.CLOSED: [WIRE[Signal.NOTIFY], lambda c: c.grant(1, 7), WIRE[Signal.EOS_MESSAGE]],
    },
)
_SENDING = Part(
    SendingConnection,
    {
        State.CONNECTED: [],
        State.HANDSHAKE: [lambda c: c.hello(HELLO)],
        State.STREAMING: [lambda c: c.hello(HELLO), WIRE[Signal.OK]],
        State.ERROR: [WIRE[Signal.ERROR]],
        State.DISCONNECTED: [lambda c: c.disconnected()],
    },
    {
        Signal.HELLO: lambda c: c.hello(HELLO),
        Signal.NOTIFY: lambda c: c.notify(Notify(1, b"one", 0)),
        Signal.MESSAGE: lambda c: c.messages(1, 1, MESSAGE),
        Signal.EOS_MESSAGE: lambda c: c.end(1),
        Signal.ERROR: lambda c: c.fail("no"),
        Signal.CLOSED: lambda c: c.disconnected(),
    },
    {
        State.START: [],
        State.NOTIFY_SENT: [lambda c: c.notify(Notify(1, b"one", 0))],
        State.OPEN: [lambda c: c.notify(Notify(1, b"one", 0)), WIRE[Signal.NOTIFY_ACK]],
        State.CLOSED: [lambda c: c.notify(Notify(1, b"one", 0)), WIRE[Signal.NOTIFY_NACK]],
    },
)
_worker_ready: list[bytes | Do] = [
    lambda c: c.hello(HELLO),
    WIRE[Signal.OK],
    lambda c: c.list_uncommitted(5),
    WIRE[Signal.SETTLED],
    lambda c: c.list_uncommitted(5),
]
_WORKING = Part(
    WorkingConnection,
    {
        State.AWAITING_HELLO: [],
        State.AWAITING_APPROVAL: [lambda c: c.hello(HELLO)],
        State.AWAITING_DATA: _worker_ready,
        State.AWAITING_PHASE2: [*_worker_ready, lambda c: c.phase1("t", 0, 3)],
        State.ERROR: [WIRE[Signal.ERROR]],
        State.DISCONNECTED: [lambda c: c.disconnected()],
    },
    {
        Signal.HELLO: lambda c: c.hello(HELLO),
        Signal.NOTIFY: lambda c: c.notify(),
        Signal.MESSAGE: lambda c: c.data(MESSAGE),
        Signal.LIST_UNCOMMITTED: lambda c: c.list_uncommitted(6),
        Signal.PHASE1: lambda c: c.phase1("t", 0, 3),
        Signal.PHASE2: lambda c: c.phase2("t", True),
        Signal.PHASE2_OTHER: lambda c: c.phase2("other", True),
        Signal.WORKERS_LEFT: lambda c: c.workers_left(5, ("w",)),
        Signal.ERROR: lambda c: c.fail("no"),
        Signal.CLOSED: lambda c: c.disconnected(),
    },
    {
        State.START: [],
        State.NOTIFY_SENT: [lambda c: c.notify()],
        State.OPEN: [lambda c: c.notify(), WIRE[Signal.NOTIFY_ACK]],
        State.CLOSED: [lambda c: c.notify(), WIRE[Signal.NOTIFY_NACK]],
    },
)
_sink_ready: list[bytes | Do] = [
    WIRE[Signal.HELLO],
    lambda c: c.approve(),
]
_SINKING = Part(
    lambda: SinkingConnection(version="v0.0.1", cookie="cookie"),
    {
        State.AWAITING_HELLO: [],
        State.AWAITING_APPROVAL: [WIRE[Signal.HELLO]],
        State.AWAITING_DATA: _sink_ready,
        State.AWAITING_PHASE2: [*_sink_ready, WIRE[Signal.PHASE1]],
        State.ERROR: [WIRE[Signal.ERROR]],
        State.DISCONNECTED: [lambda c: c.disconnected()],
    },
    {
        Signal.OK: lambda c: c.approve(),
        Signal.OK_UNSETTLED: lambda c: c.approve(["t"]),
        Signal.UNCOMMITTED: lambda c: c.reply_uncommitted(5, ["t"]),
        Signal.SETTLED: lambda c: c.reply_uncommitted(5, []),
        Signal.REPLY: lambda c: c.vote("t", True),
        Signal.NOTIFY_ACK: lambda c: c.grant(1, 0),
        Signal.ACK: lambda c: c.ended(1, 0),
        Signal.ERROR: lambda c: c.deny("no"),
        Signal.CLOSED: lambda c: c.disconnected(),
    },
    {
        State.START: [],
        State.NOTIFY_SENT: [WIRE[Signal.NOTIFY]],
        State.OPEN: [WIRE[Signal.NOTIFY], lambda c: c.grant(1, 0)],
        State.CLOSED: [WIRE[Signal.NOTIFY], lambda c: c.grant(1, 0), WIRE[Signal.EOS_MESSAGE]],
    },
)
PARTS = {
    "receiving": _RECEIVING,
    "sending": _SENDING,
    "working": _WORKING,
    "sinking": _SINKING,
}


@dataclass
class Conversation:
    part: str
    connection: Connection
    table: Table
    state: State  # before the last step
    side: Side  # who takes it
    signal: Signal
    lines: list[str]
    said: int  # how many of the lines are the way there
    after: State

    @property
    def last(self) -> list[str]:
        return self.lines[self.said :]

    @property
    def name(self) -> str:
        does = "says" if self.side is self.connection.side else "hears"
        of = "stream 1 " if self.table is STREAM else ""
        return f"{self.part}: {of}{self.state}, {does} {self.signal}"

    @property
    def recorded(self) -> str:
        return "\n".join([f"== {self.name}", *self.lines, f"{self.after}", ""])


LIVE = (State.STREAMING, State.AWAITING_DATA, State.AWAITING_PHASE2)
OF_STREAMS = {signal for rows in STREAM.values() for _, signal in rows}


def conversations() -> Iterator[Conversation]:
    for name, part in PARTS.items():
        for state, path in part.paths.items():
            yield from _steps(name, part, path, part.make().table, state)
        for state in part.streams:
            yield from _steps(name, part, part.paths[_live(part)], STREAM, state)


def _live(part: Part) -> State:
    return next(state for state in part.paths if state in LIVE)


def _steps(
    name: str, part: Part, path: list[bytes | Do], table: Table, state: State
) -> Iterator[Conversation]:
    own = part.make().side
    for signal in Signal:
        if table is STREAM and signal not in OF_STREAMS:
            continue
        if signal is Signal.PHASE2 and state is State.AWAITING_DATA:
            continue  # nothing is undecided there: it is always another one
        for side, step in ((own.other, WIRE.get(signal)), (own, part.says.get(signal))):
            if step is None:
                continue
            recorder = Recorder(part.make())
            for one in (*path, *_stream_path(part, table, state, side, signal)):
                recorder.say(one) if callable(one) else recorder.hear(one)
            before = _state(recorder.connection, table)
            assert before is state, (name, before, state)
            said = len(recorder.lines)
            recorder.say(step) if callable(step) else recorder.hear(step)
            after = _state(recorder.connection, table)
            yield Conversation(
                name, recorder.connection, table, state, side, signal, recorder.lines, said, after
            )


def _stream_path(
    part: Part, table: Table, state: State, side: Side, signal: Signal
) -> list[bytes | Do]:
    """Bring stream 1 into its state; or, for steps of the connection, where the stream allows them."""
    if table is STREAM:
        return part.streams[state]
    if state not in LIVE or signal not in OF_STREAMS:
        return []
    for fitting, rows in STREAM.items():
        if (side, signal) in rows and fitting in part.streams:
            path = part.streams[fitting]
            # EOS is not said between the phases, so a stream is not closed there.
            closes = WIRE[Signal.EOS_MESSAGE] in path
            if not (closes and state is State.AWAITING_PHASE2):
                return path
    return []


def _state(connection: Connection, table: Table) -> State:
    return connection.stream_state(1) if table is STREAM else connection.state


if __name__ == "__main__":
    RECORDED.write_text("\n".join(one.recorded for one in conversations()))
