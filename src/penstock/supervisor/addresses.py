"""Addresses settled before any process starts: names looked up, port 0 made a number, ports free.

Several edge processes listen on one port with SO_REUSEPORT. That option would also let a second
Penstock join in unnoticed, so each port is first bound without it: that fails if anyone has it. Then a
socket that never listens holds the port for the life of the supervisor, so that nobody else gets it
while a process is being started again. A datagram socket would be given datagrams even so; for those
the port is only tried.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack
from typing import Any, Literal

from penstock.config.address import Address
from penstock.edge.listening import Place, bind_every, places, socket_of
from penstock.errors import Unavailable

Transport = Literal["tcp", "udp"]
_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


class Ports:
    """Holds ports until closed."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def settle(self, who: str, transport: Transport, address: Address, *, shared: bool) -> Address:
        """The address with a port that is free. `shared`: more than one process will listen on it.

        Raises Unavailable, naming `who` wants it, if it cannot be had.
        """
        found = _look_up(who, transport, address)

        def attempt(family: int, where: tuple[Any, ...]) -> socket.socket:
            return _bound(transport, family, where)

        try:
            tried = bind_every(attempt, found)
        except OSError as error:
            raise _refusal(who, transport, address, error) from error
        port: int = tried[0].getsockname()[1]
        for sock in tried:
            sock.close()
        if shared and transport == "tcp":
            for family, (host, _, *more) in found:
                self._hold(who, address, family, (host, port, *more))
        return Address(address.host, port)

    def close(self) -> None:
        self._held.close()

    def _hold(self, who: str, address: Address, family: int, where: tuple[Any, ...]) -> None:
        sock = self._held.enter_context(socket_of(family, socket.SOCK_STREAM))
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
            # Needed to bind beside connections that are closing; off again, so that whoever tries
            # this port next is told that it is taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            raise _refusal(who, "tcp", address, error) from error


def bind_listeners(who: str, address: Address) -> list[socket.socket]:
    """Listening TCP sockets for a server of this process: one for each address that the host stands for."""

    def bind(family: int, where: tuple[Any, ...]) -> socket.socket:
        return _bound("tcp", family, where)

    try:
        return bind_every(bind, _look_up(who, "tcp", address))
    except OSError as error:
        raise _refusal(who, "tcp", address, error) from error


def _bound(transport: Transport, family: int, where: tuple[Any, ...]) -> socket.socket:
    """As a single listener binds."""
    sock = socket_of(family, _KINDS[transport])
    try:
        if transport == "tcp":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        if transport == "tcp":
            # Also on the same port, two sockets may be bound with SO_REUSEADDR until one listens.
            sock.listen()
    except OSError:
        sock.close()
        raise
    return sock


def _look_up(who: str, transport: Transport, address: Address) -> list[Place]:
    try:
        return places(_KINDS[transport], address.host, address.port)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"{who}: the host of {address} cannot be looked up ({reason})") from error


def _refusal(who: str, transport: Transport, address: Address, error: OSError) -> Unavailable:
    reasons = {
        errno.EADDRINUSE: "is in use; stop the program that has it, or choose another port",
        errno.EACCES: "may not be used by this user; ports below 1024 are often kept for root",
        errno.EADDRNOTAVAIL: "is not an address of this machine",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno or 0))
    return Unavailable(f"{who}: {transport} {address} {reason}")
