"""A receiver that a source is tested with: a thread, which does what a test says and no more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from penstock.connector.columns import Messages
from penstock.connector.connection import Event
from penstock.connector.frames import Eos, Notify
from penstock.connector.receiving import ReceivingConnection
from penstock.sdk.config import VERSION

Hear = Callable[[ReceivingConnection, Event], None]


class TestReceiver:
    """Grants every stream, and acknowledges every message at once, unless `hear` does something else first."""

    __test__ = False

    def __init__(self, credits: int, hear: Hear = lambda connection, event: None) -> None:
        self._credits, self._hear = credits, hear
        self.came: list[tuple[int, int]] = []  # of each message: stream, id
        self.connections = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listening.getsockname()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            with connection, suppress(OSError):
                self._talk(connection)

    def _talk(self, socket_: socket.socket) -> None:
        connection = ReceivingConnection(version=VERSION, cookie="", initial_credits=self._credits)
        while not connection.closing and (data := socket_.recv(65_536)):
            for event in connection.feed(data):
                self._hear(connection, event)
                if not connection.closing:
                    self._answer(connection, event)
            connection.acknowledge()
            socket_.sendall(b"".join(map(bytes, connection.take())))
        socket_.shutdown(socket.SHUT_WR)
        while socket_.recv(65_536):
            pass

    def _answer(self, connection: ReceivingConnection, event: Event) -> None:
        match event:
            case Notify(stream_id):
                connection.grant(stream_id, None)
            case Messages():
                pairs = zip(event.stream_ids.tolist(), event.message_ids.tolist(), strict=True)
                for stream_id, message_id in pairs:
                    self.came.append((stream_id, message_id))
                    connection.settle(1, [(stream_id, message_id)])
            case Eos(stream_id):
                connection.ended(stream_id, None)
