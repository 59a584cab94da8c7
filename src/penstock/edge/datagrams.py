"""`receiver.udp`, and `receiver.unix` in datagram mode: one message a datagram.

The socket is drained in a loop whenever it is readable, straight from the system call: half the cost of a
datagram protocol's call per datagram. Datagrams of one sender that are read together are one batch.
Nobody can be pushed back: while the disk is behind datagrams are dropped, and counted.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock import logs
from penstock.edge.intake import Intake
from penstock.errors import InvalidMessage
from penstock.interceptors.chain import Chain
from penstock.limits import DATAGRAMS_A_TURN, MAX_UDP_STREAMS
from penstock.message import Batch, connection_stream

_SO_RCVBUFFORCE = 33
_LAST_TURNS = 64
"""At a stop: more than any receive buffer holds, and still an end if the senders go on."""
log = logs.get("edge")


class DatagramReceiver:
    def __init__(
        self,
        sock: socket.socket,
        intake: Intake,
        make_chain: Callable[[], Chain],
        max_datagram_bytes: int,
    ) -> None:
        self._sock = sock
        self._intake = intake
        self._chain = make_chain()
        self._max_bytes = max_datagram_bytes
        self._streams: OrderedDict[Any, tuple[str, int]] = OrderedDict()
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def start(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def stop(self) -> None:
        """Take what the kernel has already received, then no more."""
        if not self._stopped:
            for _ in range(_LAST_TURNS):
                if self._readable() < DATAGRAMS_A_TURN:
                    break
            self._stopped = True
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    abort = stop

    @property
    def idle(self) -> bool:
        return True

    def give_up(self) -> None:
        """Senders of datagrams wait for nothing."""

    def _readable(self) -> int:
        """Take what is there, up to a turn's worth; says how many datagrams that were."""
        receive = self._sock.recvfrom
        limit = self._max_bytes + 1
        by_sender: dict[Any, list[bytes]] = {}
        for _ in range(DATAGRAMS_A_TURN):
            try:
                data, sender = receive(limit)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._intake.counters.err += 1
                break
            queue = by_sender.get(sender)
            if queue is None:
                by_sender[sender] = [data]
            else:
                queue.append(data)
        for sender, datagrams in by_sender.items():
            self._take(sender, datagrams)
        return sum(map(len, by_sender.values()))

    def _take(self, sender: Any, datagrams: list[bytes]) -> None:
        counters = self._intake.counters
        fitting = [data for data in datagrams if len(data) <= self._max_bytes]
        counters.err += len(datagrams) - len(fitting)
        if self._intake.behind:
            counters.err += len(fitting)
            return
        if not self._chain.is_identity:
            fitting = self._intercept(fitting)
        if not fitting:
            return
        name, seq = self._stream(sender)
        self._streams[sender] = (name, seq + len(fitting))
        batch = Batch(
            self._intake.peer,
            name,
            seq,
            b"".join(fitting),
            np.fromiter(map(len, fitting), np.uint32, len(fitting)),
            time_us=time.time_ns() // 1000,
        )
        # A datagram's sender waits for nothing: there is only counting to do.
        self._intake.submit(batch, partial(self._intake.settled, batch.count))

    def _intercept(self, datagrams: list[bytes]) -> list[bytes]:
        payloads: list[bytes] = []
        for data in datagrams:
            try:
                payloads += map(bytes, self._chain.feed(data))
            except InvalidMessage:
                self._intake.counters.err += 1
        return payloads

    def _stream(self, sender: Any) -> tuple[str, int]:
        known = self._streams.get(sender)
        if known is not None:
            self._streams.move_to_end(sender)
            return known
        if len(self._streams) >= MAX_UDP_STREAMS:
            self._streams.popitem(last=False)
        return connection_stream(), 0


def ask_for_buffer(sock: socket.socket, size_bytes: int) -> None:
    """The largest receive buffer that the system gives, up to `size_bytes`."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size_bytes)
    except OSError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)
    given = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
    if given < size_bytes:
        log.warning(
            "the system gives a smaller receive buffer; raise net.core.rmem_max",
            asked_bytes=size_bytes,
            given_bytes=given,
        )
