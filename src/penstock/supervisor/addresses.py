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
from typing import Literal

from penstock.config.address import Address
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
        places = _look_up(who, transport, address)
        port = address.port
        for family, place in places:
            port = self._try(who, transport, address, family, place, port)
        if shared and transport == "tcp":
            for family, place in places:
                self._hold(who, address, family, place, port)
        return Address(address.host, port)

    def close(self) -> None:
        self._held.close()

    def _try(
        self,
        who: str,
        transport: Transport,
        address: Address,
        family: int,
        place: str,
        port: int,
    ) -> int:
        """Bind as a single listener would, and let go; the port that was given."""
        with _socket(family, transport) as sock:
            try:
                if transport == "tcp":
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((place, port))
                if transport == "tcp":
                    sock.listen(1)
            except OSError as error:
                raise _refusal(who, transport, address, error) from error
            found: int = sock.getsockname()[1]
            return found

    def _hold(self, who: str, address: Address, family: int, place: str, port: int) -> None:
        sock = self._held.enter_context(_socket(family, "tcp"))
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind((place, port))
            # Needed to bind beside connections that are closing; off again, so that whoever tries
            # this port next is told that it is taken.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        except OSError as error:
            raise _refusal(who, "tcp", address, error) from error


def bind_listener(who: str, address: Address) -> socket.socket:
    """One bound TCP socket for a server of this process; its first address if the name has more."""
    family, place = _look_up(who, "tcp", address)[0]
    sock = _socket(family, "tcp")
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((place, address.port))
        # Also on the same port, two sockets may be bound with SO_REUSEADDR until one listens.
        sock.listen()
    except OSError as error:
        sock.close()
        raise _refusal(who, "tcp", address, error) from error
    return sock


def shown(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return str(Address(host, port))


def _look_up(who: str, transport: Transport, address: Address) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(
            address.host or None, address.port, type=_KINDS[transport], flags=socket.AI_PASSIVE
        )
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Unavailable(f"{who}: the host of {address} cannot be looked up ({reason})") from error
    places = [(int(family), str(sockaddr[0])) for family, _, _, _, sockaddr in found]
    usable = [place for place in dict.fromkeys(places) if _family_works(place[0])]
    return usable or places


def _family_works(family: int) -> bool:
    """A machine without IPv6 still lists its addresses."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    except OSError:
        return False
    return True


def _socket(family: int, transport: Transport) -> socket.socket:
    sock = socket.socket(family, _KINDS[transport])
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def _refusal(who: str, transport: Transport, address: Address, error: OSError) -> Unavailable:
    reasons = {
        errno.EADDRINUSE: "is in use; stop the program that has it, or choose another port",
        errno.EACCES: "may not be used by this user; ports below 1024 are often kept for root",
        errno.EADDRNOTAVAIL: "is not an address of this machine",
    }
    reason = reasons.get(error.errno or 0, os.strerror(error.errno or 0))
    return Unavailable(f"{who}: {transport} {address} {reason}")
