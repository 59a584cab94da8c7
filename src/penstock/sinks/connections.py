"""Connections to destinations, kept by the process between batches.

A sink is pickled into every task, so it cannot hold a connection; the process that runs the tasks can.
`lease` takes one from those that lie idle, or makes one; `give_back` lets the next task of this
process have it. A connection on which anything went wrong is closed and never given back.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from penstock.config.address import Address
from penstock.limits import IDLE_CONNECTIONS
from penstock.peers.options import TlsClientOptions
from penstock.sinks.interface import SinkUnavailable

_READ_BYTES: Final = 65_536
_VERSIONS: Final = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a stream connection goes: an address, or the path of a unix socket. Picklable."""

    sink: str
    place: Address | str
    timeout_s: float
    tls: TlsClientOptions | None = None

    @property
    def key(self) -> Hashable:
        return (self.sink, str(self.place))

    def unavailable(self, error: Exception | str) -> SinkUnavailable:
        reason = error if isinstance(error, str) else _reason(error)
        return SinkUnavailable(f"sink {self.sink}: {self.place}: {reason}")

    def connect(self) -> socket.socket:
        try:
            if isinstance(self.place, str):
                found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                found.settimeout(self.timeout_s)
                found.connect(self.place)
                return found
            host, port = self.place.host, self.place.port
            found = socket.create_connection((host, port), self.timeout_s)
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is None:
                return found
            context = tls_context(self.tls)
            return context.wrap_socket(found, server_hostname=self.tls.server_name or host)
        except OSError as error:
            raise self.unavailable(error) from error


def tls_context(options: TlsClientOptions) -> ssl.SSLContext:
    """Raises OSError (ssl.SSLError among them) if a file is missing or cannot be used."""
    context = ssl.create_default_context(cafile=options.ca)
    context.minimum_version = _VERSIONS[options.min_version]
    if options.cert is not None:
        key = None if options.key is None else options.key.get_secret_value()
        password = options.key_password
        context.load_cert_chain(
            options.cert, key, None if password is None else password.get_secret_value()
        )
    return context


@dataclass(slots=True)
class Lease:
    """A connection in use. `fresh`: it was made for its user."""

    socket: socket.socket
    fresh: bool

    def close(self) -> None:
        with suppress(OSError):
            self.socket.close()

    def reset(self) -> None:
        """Close it so that the other side can tell that it was broken off, and does not take the
        beginning of a message for a message."""
        with suppress(OSError):
            linger = struct.pack("ii", 1, 0)
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.close()


class _Idle:
    """The connections of this process that nobody uses. Not shared with a forked child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._kept: dict[Hashable, list[Any]] = {}

    def take(self, key: Hashable) -> Any:
        with self._lock:
            self._check_pid()
            kept = self._kept.get(key)
            return kept.pop() if kept else None

    def put(self, key: Hashable, connection: Any) -> bool:
        """False if there are enough already."""
        with self._lock:
            self._check_pid()
            kept = self._kept.setdefault(key, [])
            if len(kept) >= IDLE_CONNECTIONS:
                return False
            kept.append(connection)
            return True

    def clear(self, key: Hashable) -> list[Any]:
        with self._lock:
            self._check_pid()
            return self._kept.pop(key, [])

    def _check_pid(self) -> None:
        if self._pid != os.getpid():
            # The parent's: two processes must not write to one connection. Left open, since closing
            # a TLS connection would say goodbye in the parent's name.
            self._inherited = self._kept
            self._kept = {}
            self._pid = os.getpid()


idle = _Idle()


def lease(target: Target, *, reuse: bool = True) -> Lease:
    """A connection that was alive a moment ago. SinkUnavailable if none can be made."""
    while reuse and (found := idle.take(target.key)) is not None:
        with suppress(OSError):
            if drain(found):
                return Lease(found, fresh=False)
        found.close()
    return Lease(target.connect(), fresh=True)


def give_back(target: Target, used: Lease) -> None:
    if not idle.put(target.key, used.socket):
        used.close()


def close_idle(target: Target) -> None:
    for one in idle.clear(target.key):
        one.close()


def drain(connection: socket.socket) -> bool:
    """Read and forget what the other side has said, so that it need not wait for us.

    False if it will say no more, which need not mean that it does not listen. OSError if the connection
    is broken.
    """
    timeout = connection.gettimeout()
    connection.setblocking(False)
    try:
        while connection.recv(_READ_BYTES):
            pass
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    finally:
        connection.settimeout(timeout)
    return False


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
