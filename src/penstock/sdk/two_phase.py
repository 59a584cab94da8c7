"""`TwoPhaseSink`: a server that takes part in Penstock's transactions, and hides how.

Subclass it and write either the three methods of a destination that can prepare:

    class Orders(TwoPhaseSink):
        def prepare(self, txn, messages): ...   # durable at the destination, and not visible
        def commit(self, txn): ...              # visible
        def abort(self, txn): ...               # gone

or only one, for a destination that cannot:

        def deliver(self, messages): ...        # what was committed, after it was

The rest is here: who is connected, what was received and voted, the transaction log, recovery after a crash.

Promised: after `prepare` has returned, exactly one of `commit` and `abort` comes, sooner or later, whatever is
killed meanwhile; either may come again, also for a transaction that `prepare` never heard of. With `commit`
and `abort` idempotent, every message is there exactly once. `deliver` is told of a round once, or again
if the program was killed while it was at it: `messages.transaction.id` is the same then.

Not promised: order between workers. The methods are called by several threads, one at a time.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock import logs
from penstock.connector.keepalive import keep_alive
from penstock.connector.participant import Participant
from penstock.connector.sinking import SinkingConnection
from penstock.limits import (
    CONNECTOR_HELLO_TIMEOUT_S,
    CONNECTOR_LINGER_S,
    MAX_CONNECTOR_FRAME_BYTES,
    MAX_SINK_CONNECTIONS,
    SINK_READ_BYTES,
)
from penstock.sdk.config import VERSION
from penstock.sdk.rounds import Round, Transaction
from penstock.sdk.sink_faults import Action, Fault, FaultRules
from penstock.sdk.sink_store import SinkStore, SinkWorkers

log = logs.get("sdk")
MAX_LINGER_READS: Final = 64


class TwoPhaseSink:
    """`folder` is the sink's memory: give it the same after a restart, and no other sink."""

    def __init__(
        self,
        folder: Path | str,
        *,
        version: str = VERSION,
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
        max_frame_bytes: int = MAX_CONNECTOR_FRAME_BYTES,
        faults: Iterable[Fault] = (),
    ) -> None:
        self.folder = Path(folder)
        self._version = version
        self._cookie = cookie
        self._tls = tls
        self._max_frame_bytes = max_frame_bytes
        self._faults = FaultRules(faults)
        self._struck: dict[str, Action] = {}  # by worker: what is to go wrong with its answer
        self._calls = threading.RLock()
        self._workers: SinkWorkers | None = None
        self._listening: socket.socket | None = None
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._changes = threading.Lock()
        self._closed = threading.Event()

    # --- The user's part ------------------------------------------------------------------------

    def prepare(self, txn: Transaction, messages: Round) -> bool | None:
        """Make the messages durable at the destination, not visible. False, or any exception, is a
        vote to roll back."""
        return True

    def commit(self, txn: Transaction) -> None:
        """Make them visible. An exception: it is asked for again, and nothing else goes on meanwhile."""

    def abort(self, txn: Transaction) -> None:
        """Remove them, if they are there."""

    def deliver(self, messages: Round) -> None:
        """Take messages that are committed. An exception is treated as that of `commit`."""

    def worker_left(self, worker: str) -> None:
        """This worker will never come back."""

    # --- Running --------------------------------------------------------------------------------

    def listen(self, host: str = "127.0.0.1", port: int = 0) -> tuple[str, int]:
        """Recover, then take connections in the background. The address, with the port that was free if
        none was asked for."""
        self.open()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listening = socket.create_server((host, port), family=family, backlog=128)
        self._start(self._accept, self._listening)
        found = self._listening.getsockname()
        return found[0], found[1]

    def connect(self, host: str, port: int, *, timeout_s: float = 10.0) -> None:
        """Serve one connection that is made from here: for a worker behind a relay that listens."""
        self.open()
        self._begin(socket.create_connection((host, port), timeout_s))

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """`listen`, until somebody calls `close`."""
        self.listen(host, port)
        self._closed.wait()

    def open(self) -> None:
        """Recover what the folder knows. `listen` and `connect` do it."""
        if self._workers is None:
            store = SinkStore(self.folder, _Asked(self))
            self._workers = SinkWorkers(store)
            self._workers.recover(store.records())

    def close(self) -> None:
        """Stop. What is under way is settled after the next start."""
        self._closed.set()
        with self._changes:
            sockets = [*self._connections, *filter(None, [self._listening])]
        for one in sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        if self._listening is not None:
            self._listening.close()
        with self._changes:
            threads = list(self._threads)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._workers is not None:
            self._workers.store.close()
            self._workers = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- Connections ----------------------------------------------------------------------------

    def _accept(self, listening: socket.socket) -> None:
        while not self._closed.is_set():
            try:
                found, _ = listening.accept()
            except OSError:
                if self._closed.wait(0.05):  # or out of descriptors, for a while
                    return
                continue
            if len(self._connections) >= MAX_SINK_CONNECTIONS:
                log.warning("too many connections", most=MAX_SINK_CONNECTIONS)
                found.close()
                continue
            self._begin(found)

    def _begin(self, connection: socket.socket) -> None:
        with self._changes:
            # Whoever comes while `close` waits for the others would be waited for, too, and for ever.
            if self._closed.is_set():
                connection.close()
                return
            self._connections.add(connection)
            self._start(self._serve, connection)

    def _start(self, work: object, connection: socket.socket) -> None:
        thread = threading.Thread(target=work, args=(connection,), daemon=True)  # type: ignore[arg-type]
        self._threads.add(thread)
        thread.start()

    def _serve(self, connection: socket.socket) -> None:
        used = connection
        try:
            connection.settimeout(CONNECTOR_HELLO_TIMEOUT_S)
            keep_alive(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                used = self._tls.wrap_socket(
                    connection, server_side=True, do_handshake_on_connect=False
                )
                with self._changes:
                    # The other one has nothing to shut down any more.
                    self._connections.discard(connection)
                    self._connections.add(used)
                    if self._closed.is_set():
                        return
                used.do_handshake()
            self._converse(used)
        except OSError as error:
            log.debug("connection ended", reason=str(error))
        finally:
            with self._changes:
                self._connections -= {connection, used}
                self._threads.discard(threading.current_thread())
            with suppress(OSError):
                used.close()

    def _converse(self, connection: socket.socket) -> None:
        assert self._workers is not None
        protocol = SinkingConnection(
            version=self._version, cookie=self._cookie, max_frame_bytes=self._max_frame_bytes
        )
        participant = Participant(protocol, self._workers)
        buffer = memoryview(bytearray(SINK_READ_BYTES))
        try:
            while not protocol.closing:
                size = connection.recv_into(buffer)
                if not size:
                    return
                self._hear(participant, buffer[:size])
                if not self._answer(connection, participant):
                    return
                if participant.worker is not None:
                    connection.settimeout(None)
            _let_go(connection)
        finally:
            # Before the socket closes: who sees the end of it may connect under the same name.
            participant.disconnected()

    def _hear(self, participant: Participant, data: memoryview) -> None:
        try:
            participant.receive(data)
        except Exception as error:
            log.error("cannot go on", worker=participant.worker, error=repr(error))
            participant.connection.fail(f"{type(error).__name__}: {error}")
        if participant.failed is not None:
            log.warning("connection failed", reason=participant.failed.reason)

    def _answer(self, connection: socket.socket, participant: Participant) -> bool:
        """Send what there is to say. False: a rule has it that the connection ends now."""
        fault = self._struck.pop(participant.worker, None) if participant.worker else None
        out = participant.connection.take()
        if fault == "close_before":
            return False
        if out:
            connection.sendall(b"".join(out))
        return fault is None

    # --- Between the store and the user ---------------------------------------------------------

    @property
    def _stages(self) -> bool:
        """Whether `prepare` is the user's own, and so may leave something behind."""
        return getattr(self.prepare, "__func__", None) is not TwoPhaseSink.prepare

    def _vote(self, messages: Round) -> str:
        txn = messages.transaction
        action = self._faults.action(messages)
        if action == "vote_no":
            return "a fault rule says so"
        if action is not None:
            self._struck[txn.worker] = action
        with self._calls:
            return "" if self.prepare(txn, messages) is not False else "prepare said no"

    def _committed(self, messages: Round, path: Path) -> None:
        with self._calls:
            self.commit(messages.transaction)
            if path.exists():  # otherwise it was delivered before a restart
                self.deliver(messages)


def _let_go(connection: socket.socket) -> None:
    """After an ERROR: closing while there is something to read would take it back from the wire."""
    connection.settimeout(CONNECTOR_LINGER_S)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        for _ in range(MAX_LINGER_READS):
            if not connection.recv(SINK_READ_BYTES):
                break


class _Asked:
    """What the store asks of a sink."""

    def __init__(self, sink: TwoPhaseSink) -> None:
        self._sink = sink

    @property
    def stages(self) -> bool:
        return self._sink._stages

    def vote(self, round_: Round) -> str:
        return self._sink._vote(round_)

    def commit(self, round_: Round, path: Path) -> None:
        self._sink._committed(round_, path)

    def abort(self, transaction: Transaction) -> None:
        with self._sink._calls:
            self._sink.abort(transaction)

    def left(self, worker: str) -> None:
        with self._sink._calls:
            self._sink.worker_left(worker)
