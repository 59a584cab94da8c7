"""How a connection finds out that the machine at its other end has vanished without a word.

Until it does, the streams or the worker of that connection count as held, and nobody else is let in.
"""

from __future__ import annotations

import socket
from typing import Protocol

from penstock.limits import (
    CONNECTOR_KEEPALIVE_IDLE_S,
    CONNECTOR_KEEPALIVE_INTERVAL_S,
    CONNECTOR_KEEPALIVE_PROBES,
)


class Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def keep_alive(connection: Socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, CONNECTOR_KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, CONNECTOR_KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, CONNECTOR_KEEPALIVE_PROBES)
