"""One worker's connection to a sink of the connector protocol: blocking, and settled before anything else.

`WorkerLink` is the shell around `penstock.connector.worker`: a socket, and how long to wait. It reads while
it writes, since a sink may say more than the network holds while we send.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock.connector.frames import Hello
from penstock.connector.worker import Worker
from penstock.errors import ProtocolError
from penstock.message import Buffer
from penstock.sinks.connections import Target

_READ_BYTES: Final = 65_536
_RETRY_S: Final = 0.02
_GOODBYE_S: Final = 1.0

Decide = Callable[[str], bool]
"""Whether a transaction that the sink names is to be committed."""


class WorkerLink:
    """SinkUnavailable from every method: the connection is of no more use."""

    def __init__(
        self,
        target: Target,
        hello: Hello,
        decide: Decide,
        timeout_s: float,
        point_of_reference: int = 0,
    ) -> None:
        """Connect, say hello, and settle what the sink holds. `timeout_s` is for all of it."""
        self._target = target
        self._decide = decide
        self._out: list[memoryview] = []
        self.named: set[str] = set()  # what the sink asked about
        deadline = time.monotonic() + timeout_s
        while True:
            self._socket = target.connect()
            self._socket.setblocking(False)
            self._worker = Worker(hello, point_of_reference=point_of_reference)
            try:
                return self._pump(lambda: self._worker.ready, deadline - time.monotonic())
            except Refused as refused:
                # The sink may not have noticed yet that the last connection of this name is gone.
                if time.monotonic() + _RETRY_S > deadline:
                    raise target.unavailable(refused) from None
                time.sleep(_RETRY_S)

    @property
    def reference(self) -> int:
        """Where the sink says that it stands. Some say what they were asked."""
        return self._worker.reference

    def send(self, frames: Buffer, timeout_s: float) -> None:
        """Data. `timeout_s` is for the longest wait in which the sink takes nothing."""
        self._worker.connection.data(frames)
        self._pump(lambda: True, timeout_s, patient=True)

    def vote(self, transaction: str, start: int, end: int, timeout_s: float) -> bool:
        """PHASE1, and the answer to it."""
        self._worker.connection.phase1(transaction, start, end)
        self._pump(lambda: transaction in self._worker.votes, timeout_s)
        return self._worker.votes[transaction]

    def tell(self, transaction: str, commit: bool, timeout_s: float) -> None:
        """PHASE2. When this returns, the sink has heard it."""
        self._worker.tell(transaction, commit)
        self._pump(lambda: self._worker.ready, timeout_s)

    def workers_left(self, workers: tuple[str, ...], timeout_s: float) -> None:
        self._worker.left(workers)
        self._pump(lambda: self._worker.ready, timeout_s)

    def close(self) -> None:
        """Leave, and wait a moment until the sink has seen it: somebody else will connect next."""
        with suppress(OSError):
            self._socket.settimeout(_GOODBYE_S)
            if isinstance(self._socket, ssl.SSLSocket):
                self._socket = self._socket.unwrap()
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(_READ_BYTES):
                pass
        self.drop()

    def drop(self) -> None:
        with suppress(OSError):
            self._socket.close()

    # --- Bytes ----------------------------------------------------------------------------------

    def _pump(self, done: Callable[[], bool], timeout_s: float, *, patient: bool = False) -> None:
        """Move bytes until all is sent and `done`. With `patient`, the time begins anew whenever something is
        taken. What is heard is no reason to: a sink may say things for ever."""
        deadline = time.monotonic() + timeout_s
        try:
            while True:
                self._out += [memoryview(piece) for piece in self._worker.connection.take()]
                sent, wanted = self._send_some()
                heard = self._hear_some()
                self._settle()
                pending = self._worker.connection.has_output
                if not self._out and not pending and done():
                    return
                if sent and patient:
                    deadline = time.monotonic() + timeout_s
                if not (sent or heard or pending):
                    self._wait(wanted, deadline)
                elif time.monotonic() > deadline:
                    raise TimeoutError
        except (OSError, ProtocolError) as error:
            self.drop()
            if isinstance(error, Refused):
                raise
            raise self._target.unavailable(error) from error

    def _send_some(self) -> tuple[bool, int]:
        """Whether anything went out, and what to wait for to send more."""
        moved = False
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except (BlockingIOError, ssl.SSLWantWriteError):
                return moved, select.POLLIN | select.POLLOUT
            except ssl.SSLWantReadError:
                return moved, select.POLLIN
            moved = True
            self._out[0] = self._out[0][sent:]
            if not len(self._out[0]):
                del self._out[0]
        return moved, select.POLLIN

    def _hear_some(self) -> bool:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        worker = self._worker
        if data:
            worker.receive(data)
        if worker.failed is not None:
            raise self._ended(worker.failed.reason)
        if not data or worker.connection.closing:
            raise self._ended("the sink has closed the connection")
        return True

    def _ended(self, reason: str) -> OSError:
        return ConnectionResetError(None, reason) if self._worker.greeted else Refused(None, reason)

    def _settle(self) -> None:
        """Decide what the sink names; the round of this connection is decided by `tell`."""
        for transaction in list(self._worker.asks):
            self.named.add(transaction)
            self._worker.tell(transaction, self._decide(transaction))

    def _wait(self, wanted: int, deadline: float) -> None:
        left_s = deadline - time.monotonic()
        poll = select.poll()
        poll.register(self._socket, wanted)
        if left_s <= 0 or not poll.poll(left_s * 1000):
            raise TimeoutError


class Refused(ConnectionError):
    """The connection ended before the sink had said OK."""
