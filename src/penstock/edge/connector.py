"""`receiver.connector`: extensions push messages in over the connector protocol.

Connections are in `connector_connection.py`, a stream's way into the log in `connector_stream.py`; here is
who holds which stream. One process runs this receiver and owns all partitions of its topic, so that a
stream is held once, and its point of reference known without asking anyone. Another receiver is another peer, with
streams of its own: docs/decisions/0011.
"""

from __future__ import annotations

import asyncio

from xxhash import xxh3_64_intdigest

from penstock.connector.frames import Notify
from penstock.edge.connector_connection import ConnectorConnection
from penstock.edge.connector_stream import Stream
from penstock.edge.intake import Intake
from penstock.errors import PenstockError, Unavailable
from penstock.limits import CONNECTOR_READ_BYTES
from penstock.peers.connector import ConnectorReceiverOptions

_SWEEP_S = 1.0


class ConnectorReceiver:
    """What all connections of one receiver share."""

    def __init__(self, options: ConnectorReceiverOptions, intake: Intake) -> None:
        self.options = options
        self.intake = intake
        self.connections: set[ConnectorConnection] = set()
        self.stopping = False
        # One buffer for all: what is read is copied into columns before the next read.
        self.buffer = memoryview(bytearray(CONNECTOR_READ_BYTES))
        self._streams: dict[int, Stream] = {}
        self._refused: dict[int, set[ConnectorConnection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> ConnectorConnection:
        return ConnectorConnection(self)

    def arrived(self, connection: ConnectorConnection) -> bool:
        room = len(self.connections) < self.options.max_connections and not self.stopping
        self.connections.add(connection)
        return room

    def left(self, connection: ConnectorConnection) -> None:
        self.connections.discard(connection)
        for waiting in self._refused.values():
            waiting.discard(connection)

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Take no more; what was read is made durable and acknowledged, then RESTART is sent."""
        self.stopping = True
        for connection in list(self.connections):
            connection.finish()

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    @property
    def idle(self) -> bool:
        """Extensions have a moment to read the RESTART, and to leave by themselves."""
        return not self.connections

    def give_up(self) -> None:
        for connection in list(self.connections):
            connection.close()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
        for connection in list(self.connections):
            connection.check_time(loop.time())

    # --- Who holds which stream -----------------------------------------------------------------

    def ask(self, connection: ConnectorConnection, notify: Notify) -> None:
        """Give the stream to the connection: now, once its last holder's data are stored, or never."""
        if connection not in self.connections:
            return  # it left while it waited
        stream_id = notify.stream_id
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.idle and stream.holder in (None, connection):
            stream.on_idle.append(lambda: self.ask(connection, notify))
            return
        if stream is not None and stream.holder not in (None, connection):
            self._refused.setdefault(stream_id, set()).add(connection)
            connection.refuse(stream_id)
            return
        try:
            stream = self._open(stream_id, notify.stream_name)
        except PenstockError as error:
            connection.fail(str(error))
            return
        stream.holder = connection
        self._streams[stream_id] = stream
        connection.grant(stream)

    def release(self, stream: Stream) -> None:
        """The stream ended, or its connection did."""
        stream.forget()
        if stream.idle:
            self._forget(stream)
        else:
            stream.on_idle.insert(0, lambda: self._forget(stream))

    def _forget(self, stream: Stream) -> None:
        if self._streams.get(stream.stream_id) is stream:
            del self._streams[stream.stream_id]
        # Programs ask again when they hear an ACK.
        for connection in self._refused.pop(stream.stream_id, ()):
            connection.nudge()

    def _open(self, stream_id: int, name: bytes) -> Stream:
        """On the partition that knows it; a topic may have grown since. A new one goes by its hash."""
        intake = self.intake
        producer = f"connector {intake.peer}/{stream_id}"
        place = xxh3_64_intdigest(f"{intake.peer}/{stream_id}".encode()) % intake.partitions
        for partition, writer in intake.writers.items():
            if writer.last_number(producer) is not None:
                place = partition
        if place not in intake.writers:
            raise Unavailable(f"stream {stream_id} is on a partition that another process writes")
        return Stream(stream_id, name, producer, intake.writers[place], intake)
