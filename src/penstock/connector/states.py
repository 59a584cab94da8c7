"""Who may say what, and when: every state machine of the protocol, as tables of data.

Both roles have the same two sides. The *sender* connects, says HELLO, opens streams and sends data; the
*receiver* answers. In the source role the extension is the sender and Penstock the receiver; in the sink
role Penstock (the worker) is the sender and the extension (the sink) the receiver.

Both sides keep the same tables: a side takes a step when it says something, the other when it hears
it. What is in no row is not allowed: heard, it is answered with ERROR and the connection closes; said, it
is a mistake of the program that says it. Because answers are on their way while the other side goes
on, the two may stand in different states for a moment; the tables allow for that where it can happen.

A *signal* is a frame or a two-phase message, told apart further where the next state hangs on its content:

- NOTIFY_ACK and NOTIFY_NACK: success 1 and 0.
- PHASE2 decides the last transaction that is still open on this connection; PHASE2_OTHER one of several,
  or one that is not known.
- OK_UNSETTLED: an OK, where the sink's log holds a transaction that was never decided.
- UNCOMMITTED: a REPLY_UNCOMMITTED that names something; SETTLED: one that names nothing.

`CLOSED` is not a signal of the wire: the connection has gone.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeAlias


class Side(StrEnum):
    SENDER = "sender"
    RECEIVER = "receiver"

    @property
    def other(self) -> Side:
        return Side.RECEIVER if self is Side.SENDER else Side.SENDER


class Signal(StrEnum):
    HELLO = "HELLO"
    OK = "OK"
    OK_UNSETTLED = "OK (unsettled)"
    ERROR = "ERROR"
    NOTIFY = "NOTIFY"
    NOTIFY_ACK = "NOTIFY_ACK(1)"
    NOTIFY_NACK = "NOTIFY_ACK(0)"
    MESSAGE = "MESSAGE"
    ACK = "ACK"
    RESTART = "RESTART"
    EOS_MESSAGE = "EOS_MESSAGE"
    LIST_UNCOMMITTED = "LIST_UNCOMMITTED"
    UNCOMMITTED = "REPLY_UNCOMMITTED(some)"
    SETTLED = "REPLY_UNCOMMITTED(none)"
    PHASE1 = "PHASE1"
    REPLY = "REPLY"
    PHASE2 = "PHASE2"
    PHASE2_OTHER = "PHASE2 (another)"
    WORKERS_LEFT = "WORKERS_LEFT"
    CLOSED = "the connection closes"


class State(StrEnum):
    """The names are those of the protocol's description."""

    # connections of the source role
    CONNECTED = "connected"
    HANDSHAKE = "handshake"
    STREAMING = "streaming"
    # connections of the sink role
    AWAITING_HELLO = "awaiting hello"
    AWAITING_APPROVAL = "awaiting approval"
    AWAITING_DATA = "awaiting data or phase 1"
    AWAITING_PHASE2 = "awaiting phase 2"
    # the end of either
    ERROR = "error"
    DISCONNECTED = "disconnected"
    # streams
    START = "start"
    NOTIFY_SENT = "notify sent"
    OPEN = "open"
    CLOSED = "closed"
    TERMINATED = "terminated"


Step: TypeAlias = tuple[Side, Signal]
Table: TypeAlias = dict[State, dict[Step, State]]

_S, _R = Side.SENDER, Side.RECEIVER

_ENDS: Final[dict[Step, State]] = {
    (_S, Signal.ERROR): State.ERROR,
    (_R, Signal.ERROR): State.ERROR,
    (_S, Signal.CLOSED): State.DISCONNECTED,
    (_R, Signal.CLOSED): State.DISCONNECTED,
}
"""Either side may give up at any time."""

SOURCE_CONNECTION: Final[Table] = {
    State.CONNECTED: {
        (_S, Signal.HELLO): State.HANDSHAKE,
        **_ENDS,
    },
    State.HANDSHAKE: {
        (_R, Signal.OK): State.STREAMING,
        **_ENDS,
    },
    State.STREAMING: {
        (_S, Signal.NOTIFY): State.STREAMING,
        (_R, Signal.NOTIFY_ACK): State.STREAMING,
        (_R, Signal.NOTIFY_NACK): State.STREAMING,
        (_S, Signal.MESSAGE): State.STREAMING,
        (_R, Signal.ACK): State.STREAMING,
        (_S, Signal.EOS_MESSAGE): State.STREAMING,
        (_R, Signal.RESTART): State.DISCONNECTED,
        **_ENDS,
    },
    State.ERROR: {},
    State.DISCONNECTED: {},
}

STREAM: Final[Table] = {
    State.START: {
        (_S, Signal.NOTIFY): State.NOTIFY_SENT,
    },
    State.NOTIFY_SENT: {
        (_R, Signal.NOTIFY_ACK): State.OPEN,
        (_R, Signal.NOTIFY_NACK): State.CLOSED,
        # For what was sent before the stream was closed, and opened again.
        (_R, Signal.ACK): State.NOTIFY_SENT,
        (_R, Signal.RESTART): State.TERMINATED,
    },
    State.OPEN: {
        (_S, Signal.MESSAGE): State.OPEN,
        (_R, Signal.ACK): State.OPEN,
        (_S, Signal.EOS_MESSAGE): State.CLOSED,
        (_R, Signal.RESTART): State.TERMINATED,
    },
    State.CLOSED: {
        (_R, Signal.ACK): State.CLOSED,
        (_S, Signal.NOTIFY): State.NOTIFY_SENT,
        (_R, Signal.RESTART): State.TERMINATED,
    },
    State.TERMINATED: {},
}

SINK_CONNECTION: Final[Table] = {
    State.AWAITING_HELLO: {
        (_S, Signal.HELLO): State.AWAITING_APPROVAL,
        **_ENDS,
    },
    State.AWAITING_APPROVAL: {
        (_R, Signal.OK): State.AWAITING_DATA,
        (_R, Signal.OK_UNSETTLED): State.AWAITING_PHASE2,
        **_ENDS,
    },
    State.AWAITING_DATA: {
        (_S, Signal.NOTIFY): State.AWAITING_DATA,
        (_R, Signal.NOTIFY_ACK): State.AWAITING_DATA,
        (_R, Signal.NOTIFY_NACK): State.AWAITING_DATA,
        (_S, Signal.MESSAGE): State.AWAITING_DATA,
        (_R, Signal.ACK): State.AWAITING_DATA,
        (_S, Signal.EOS_MESSAGE): State.AWAITING_DATA,
        (_S, Signal.LIST_UNCOMMITTED): State.AWAITING_DATA,
        (_R, Signal.SETTLED): State.AWAITING_DATA,
        # The worker could not know of it before.
        (_R, Signal.UNCOMMITTED): State.AWAITING_PHASE2,
        (_S, Signal.PHASE1): State.AWAITING_PHASE2,
        # The vote of a round that was rolled back without waiting for it.
        (_R, Signal.REPLY): State.AWAITING_DATA,
        (_S, Signal.PHASE2_OTHER): State.AWAITING_DATA,
        (_S, Signal.WORKERS_LEFT): State.AWAITING_DATA,
        (_R, Signal.RESTART): State.DISCONNECTED,
        **_ENDS,
    },
    State.AWAITING_PHASE2: {
        (_S, Signal.NOTIFY): State.AWAITING_PHASE2,
        (_R, Signal.NOTIFY_ACK): State.AWAITING_PHASE2,
        (_R, Signal.NOTIFY_NACK): State.AWAITING_PHASE2,
        (_R, Signal.ACK): State.AWAITING_PHASE2,
        (_S, Signal.LIST_UNCOMMITTED): State.AWAITING_PHASE2,
        (_R, Signal.SETTLED): State.AWAITING_PHASE2,
        (_R, Signal.UNCOMMITTED): State.AWAITING_PHASE2,
        (_R, Signal.REPLY): State.AWAITING_PHASE2,
        (_S, Signal.PHASE2): State.AWAITING_DATA,
        (_S, Signal.PHASE2_OTHER): State.AWAITING_PHASE2,
        (_S, Signal.WORKERS_LEFT): State.AWAITING_PHASE2,
        (_R, Signal.RESTART): State.DISCONNECTED,
        **_ENDS,
    },
    State.ERROR: {},
    State.DISCONNECTED: {},
}

QUEUES: Final = frozenset({State.AWAITING_APPROVAL})
"""States in which the sink keeps later frames until it has decided about the worker."""

OVER: Final = frozenset({State.ERROR, State.DISCONNECTED})
"""States in which whatever still arrives is dropped."""

TABLES: Final[dict[str, Table]] = {
    "source connection": SOURCE_CONNECTION,
    "stream": STREAM,
    "sink connection": SINK_CONNECTION,
}
