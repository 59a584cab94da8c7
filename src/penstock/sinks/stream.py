"""`sink.tcp`, and `sink.unix` in stream mode: payloads through interceptors over a connection.

A connection cannot prepare, so everything is sent in `prepare`, or before, in parts, if a task has more
than `SEND_BUFFER_BYTES`. What `prepare` waits for decides what can be promised:

- `reply: none`: until the system at the other end has everything (TCP), or its program has read it (unix).
  If that program dies before it has dealt with it, it is lost; nobody tells. Best effort.
- `reply: status`: until each message was answered with a line, as Penstock's own receivers do with
  `reply: status`: `new` or `done`, and anything else is a refusal. At least once.

A connection is used for one task after another of the same process. The interceptors of each begin and end
with it (a gzip member a task, say). Order is kept on a connection; a stream whose next batch is sent by
another process comes over another connection.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import pyarrow as pa

from penstock.guarantee import Guarantee
from penstock.limits import REPLY_BYTES, REPLY_WINDOW, SEND_BUFFER_BYTES, SEND_BYTES
from penstock.message import Buffer
from penstock.sinks.connections import (
    Lease,
    Target,
    close_idle,
    drain,
    give_back,
    lease,
)
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Prepared, Refused, Txn

_ACCEPTED: Final = (b"new", b"done")
_LATER: Final = ("throttled", "timed_out", "error")

Reply = Literal["none", "status"]


@dataclass(frozen=True, slots=True)
class StreamSink:
    target: Target
    framing: Framing = field(default_factory=lambda: Framing((("lines", {}),)))
    reply: Reply = "none"

    @property
    def name(self) -> str:
        return self.target.sink

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.BEST_EFFORT if self.reply == "none" else Guarantee.AT_LEAST_ONCE

    def task(self, txn: Txn, partition: int, attempt: int) -> StreamTask | AnsweredTask:
        if self.reply == "none":
            return StreamTask(self.target, self.framing)
        return AnsweredTask(self.target, self.framing)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        """It was sent when it was prepared."""

    def abort(self, txn: Txn) -> None:
        """What was sent cannot be taken back."""

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return []

    def probe(self) -> None:
        self.target.connect().close()

    def close(self) -> None:
        close_idle(self.target)


class _Connected:
    """What both kinds of task have: a connection, begun when it is needed."""

    def __init__(self, target: Target, framing: Framing) -> None:
        self._target = target
        self._framing = framing
        self._wrapper = framing.begin()
        self._lease: Lease | None = None

    def _connection(self) -> Lease:
        if self._lease is None:
            self._lease = lease(self._target, reuse=self._framing.can_go_on)
        return self._lease

    def _reconnect(self, error: OSError) -> Lease:
        """Another connection, if the one that broke was kept from an earlier batch and has carried
        nothing of this one. Otherwise the task is lost."""
        broken = self._connection()
        broken.reset()
        self._lease = None
        if broken.fresh:
            raise self._target.unavailable(error) from error
        self._lease = Lease(self._target.connect(), fresh=True)
        return self._lease

    def _send(self, used: Lease, data: Buffer) -> None:
        view = memoryview(data)
        for start in range(0, len(view), SEND_BYTES):
            used.socket.sendall(view[start : start + SEND_BYTES])

    def _done(self) -> None:
        used, self._lease = self._lease, None
        if used is None:
            return
        if self._framing.can_go_on:
            give_back(self._target, used)
        else:
            used.close()

    def abort(self) -> None:
        if self._lease is not None:
            self._lease.reset()


class StreamTask(_Connected):
    """Sends, and is not answered."""

    def __init__(self, target: Target, framing: Framing) -> None:
        super().__init__(target, framing)
        self._kept: list[Buffer] = []
        self._kept_bytes = 0

    def write(self, events: pa.RecordBatch) -> None:
        self._keep(self._wrapper.wrap(events.column("payload")).blob)
        if self._kept_bytes > SEND_BUFFER_BYTES:
            self._send_kept()

    def _keep(self, data: Buffer) -> None:
        if len(data):
            self._kept.append(data)
            self._kept_bytes += len(data)

    def prepare(self) -> Prepared:
        self._keep(self._wrapper.finish())
        if self._kept:
            self._send_kept()
        self._done()
        return Prepared()

    def _send_kept(self) -> None:
        used = self._connection()
        try:
            self._send_on(used)
        except OSError as error:
            used = self._reconnect(error)
            try:
                self._send_on(used)
            except OSError as again:
                self._reconnect(again)
        used.fresh = True  # from now on it carries something of this task
        self._kept, self._kept_bytes = [], 0

    def _send_on(self, used: Lease) -> None:
        for data in self._kept:
            self._send(used, data)
            drain(used.socket)
        _wait_until_taken(used.socket, self._target.timeout_s)


class AnsweredTask(_Connected):
    """Sends a window of messages, and waits for a line about each before it sends the next."""

    def __init__(self, target: Target, framing: Framing) -> None:
        super().__init__(target, framing)
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._refused: list[Refused] = []

    def write(self, events: pa.RecordBatch) -> None:
        self._framing.begin().wrap(events.column("payload"))  # raises Poisoned
        self._kept.append(events)
        self._kept_bytes += events.nbytes
        if self._kept_bytes > SEND_BUFFER_BYTES:
            self._send_kept()

    def prepare(self) -> Prepared:
        self._send_kept()
        if self._lease is not None:
            try:
                self._send(self._lease, self._wrapper.finish())
            except OSError as error:
                raise self._target.unavailable(error) from error
        self._done()
        return Prepared(b"", tuple(self._refused))

    def _send_kept(self) -> None:
        for events in self._kept:
            for start in range(0, events.num_rows, REPLY_WINDOW):
                self._send_window(events.slice(start, REPLY_WINDOW))
        self._kept, self._kept_bytes = [], 0

    def _send_window(self, events: pa.RecordBatch) -> None:
        used = self._connection()
        try:
            lines = self._answers(used, events)
        except OSError as error:
            used = self._reconnect(error)
            self._wrapper = self._framing.begin()
            try:
                lines = self._answers(used, events)
            except OSError as again:
                self._reconnect(again)
        used.fresh = True
        for index, line in enumerate(lines):
            if not line.startswith(_ACCEPTED):
                self._refuse(events.slice(index, 1), line.decode(errors="replace"))

    def _answers(self, used: Lease, events: pa.RecordBatch) -> list[bytes]:
        self._send(used, self._wrapper.wrap(events.column("payload")).blob)
        answer = bytearray()
        while answer.count(b"\n") < events.num_rows:
            chunk = used.socket.recv(REPLY_BYTES)
            if not chunk or len(answer) > REPLY_BYTES * events.num_rows:
                raise ConnectionResetError(None, _hung_up(bytes(answer)))
            answer += chunk
        lines = bytes(answer).split(b"\n")
        if len(lines) != events.num_rows + 1 or lines.pop():
            raise ConnectionResetError(None, "there were more answers than messages")
        return lines

    def _refuse(self, event: pa.RecordBatch, answer: str) -> None:
        if answer.startswith(_LATER):
            raise self._target.unavailable(f"the answer was: {answer}")
        self._refused.append(Refused(event, [answer]))


def _hung_up(answer: bytes) -> str:
    last = answer.rstrip(b"\n").rpartition(b"\n")[2].decode(errors="replace")
    return "the other side has closed the connection" + (f", saying: {last}" if last else "")


def _wait_until_taken(connection: socket.socket, timeout_s: float) -> None:
    """Until the system at the other end has confirmed every byte (of a unix socket: until the program
    there has read them). The time-out is for all of it, which is no more than the kernel's buffer holds: who
    takes a byte now and then holds everyone else up."""
    left = _unconfirmed(connection)
    pause_s = 0.0001
    deadline = time.monotonic() + timeout_s
    while left:
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.005)
        drain(connection)
        left = _unconfirmed(connection)
        if left and time.monotonic() > deadline:
            raise TimeoutError
    drain(connection)


def _unconfirmed(connection: socket.socket) -> int:
    """Bytes that the kernel keeps because the other side has not confirmed them (SIOCOUTQ)."""
    code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, b"\0" * 4)
    found: int = struct.unpack("i", answer)[0]
    return found
