"""`sink.udp`, and `sink.unix` in datagram mode: each message is one datagram. Best effort.

UDP does not say whether a datagram arrived; a unix socket keeps it until it is read, or its reader dies. A
port where nobody listens is noticed at the next datagram, where the system tells of it, and is then a
destination that is gone.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.config.address import Address
from penstock.guarantee import Guarantee
from penstock.interceptors.interface import Payloads
from penstock.limits import MAX_DATAGRAM_BYTES, SEND_BUFFER_BYTES
from penstock.sinks.connections import Target, idle
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Poisoned, Prepared, Refused, Txn

MAX_UDP_PAYLOAD_BYTES: Final = MAX_DATAGRAM_BYTES - 8 - 20
"""What UDP's and IPv4's own headers leave of a datagram."""


@dataclass(frozen=True, slots=True)
class DatagramSink:
    target: Target
    framing: Framing = field(default_factory=lambda: Framing(framed=True))

    @property
    def name(self) -> str:
        return self.target.sink

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.BEST_EFFORT

    def task(self, txn: Txn, partition: int, attempt: int) -> DatagramTask:
        return DatagramTask(self.target, self.framing)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        """It was sent when it was prepared."""

    def abort(self, txn: Txn) -> None:
        """What was sent cannot be taken back."""

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return []

    def probe(self) -> None:
        _connect(self.target).close()

    def close(self) -> None:
        for one in idle.clear(self.target.key):
            one.close()


class DatagramTask:
    def __init__(self, target: Target, framing: Framing) -> None:
        self._target = target
        self._wrapper = framing.begin()
        self._max_bytes = (
            MAX_UDP_PAYLOAD_BYTES if isinstance(target.place, Address) else MAX_DATAGRAM_BYTES
        )
        self._kept: list[tuple[pa.RecordBatch, Payloads]] = []
        self._kept_bytes = 0
        self._refused: list[Refused] = []

    def write(self, events: pa.RecordBatch) -> None:
        wrapped = self._wrapper.wrap(events.column("payload"))
        lengths = wrapped.lengths if wrapped.lengths is not None else np.array([len(wrapped.blob)])
        if wrapped.count != events.num_rows:
            raise Poisoned("the interceptors of a datagram must make one of each message")
        long = np.flatnonzero(lengths > self._max_bytes).tolist()
        if long:
            reason = "a datagram of {} bytes cannot be sent; the limit is {}"
            rows = {at: reason.format(int(lengths[at]), self._max_bytes) for at in long}
            raise Poisoned("too large for a datagram", rows)
        self._kept.append((events, wrapped))
        self._kept_bytes += len(wrapped.blob)
        if self._kept_bytes > SEND_BUFFER_BYTES:
            self._send()

    def prepare(self) -> Prepared:
        self._send()
        return Prepared(b"", tuple(self._refused))

    def abort(self) -> None:
        """Nothing is under way: a datagram is sent whole."""

    def _send(self) -> None:
        if not self._kept:
            return
        connection = idle.take(self._target.key) or _connect(self._target)
        try:
            for events, payloads in self._kept:
                self._send_on(connection, events, payloads)
        except OSError as error:
            connection.close()
            raise self._target.unavailable(error) from error
        if not idle.put(self._target.key, connection):
            connection.close()
        self._kept, self._kept_bytes = [], 0

    def _send_on(
        self, connection: socket.socket, events: pa.RecordBatch, payloads: Payloads
    ) -> None:
        send = connection.send
        for index, payload in enumerate(payloads):
            try:
                send(payload)
            except OSError as error:
                if error.errno != errno.EMSGSIZE:
                    raise
                reason = f"a datagram of {len(payload)} bytes is more than the network takes"
                self._refused.append(Refused(events.slice(index, 1), [reason]))


def _connect(target: Target) -> socket.socket:
    """Ready to send; nobody need be there yet, where it is an address."""
    last: OSError | None = None
    for family, place in _places(target):
        connection = socket.socket(family, socket.SOCK_DGRAM)
        connection.settimeout(target.timeout_s)
        try:
            connection.connect(place)
            return connection
        except OSError as error:
            last = error
            with suppress(OSError):
                connection.close()
    raise target.unavailable(last or "there is no such host") from last


def _places(target: Target) -> list[tuple[socket.AddressFamily, Any]]:
    place = target.place
    if isinstance(place, str):
        return [(socket.AF_UNIX, place)]
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise target.unavailable(error) from error
    return [(family, address) for family, _, _, _, address in found]
