"""Listening sockets, and the TLS in front of them."""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from penstock import logs
from penstock.errors import ConfigError, Unavailable
from penstock.peers.options import TlsServerOptions

_PORT_ATTEMPTS = 10
Place = tuple[int, tuple[Any, ...]]
"""A family, and an address as `bind` takes it."""

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def places(kind: socket.SocketKind, host: str, port: int) -> list[Place]:
    """Everything that a host stands for on this machine: `""`, or a name, may be IPv4 and IPv6. OSError or
    UnicodeError if it cannot be looked up."""
    found = socket.getaddrinfo(host or None, port, type=kind, flags=socket.AI_PASSIVE)
    unique: dict[Place, None] = dict.fromkeys(
        (int(family), where) for family, _, _, _, where in found
    )
    usable = [place for place in unique if _family_works(place[0])]
    return usable or list(unique)


def _family_works(family: int) -> bool:
    """A machine without IPv6 still lists its addresses."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    except OSError:
        return False
    return True


def socket_of(family: int, kind: socket.SocketKind) -> socket.socket:
    """Each family has a socket of its own, so that one port can be both."""
    sock = socket.socket(family, kind)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return sock


def bind_every(
    bind: Callable[[int, tuple[Any, ...]], socket.socket],
    found: list[Place],
) -> list[socket.socket]:
    """A socket for each place, all on one port, also where that is chosen by the system (port 0)."""
    for attempt in range(_PORT_ATTEMPTS):
        socks: list[socket.socket] = []
        port = found[0][1][1]
        try:
            for family, (host, _, *more) in found:
                socks.append(bind(family, (host, port, *more)))
                port = socks[0].getsockname()[1]
            return socks
        except OSError as error:
            for sock in socks:
                sock.close()
            # What the system chose for one family may be taken in the other.
            chosen = bool(socks) and found[0][1][1] == 0
            last = attempt + 1 == _PORT_ATTEMPTS
            if not chosen or last or error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("unreachable")


def _bind(kind: socket.SocketKind, address: Any, shared: bool) -> list[socket.socket]:
    def bind(family: int, where: tuple[Any, ...]) -> socket.socket:
        sock = socket_of(family, kind)
        try:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.bind(where)
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock

    return bind_every(bind, places(kind, address.host, address.port))


def bind_tcp(address: Any, shared: bool) -> list[socket.socket]:
    return _bind(socket.SOCK_STREAM, address, shared)


def bind_udp(address: Any, shared: bool) -> list[socket.socket]:
    return _bind(socket.SOCK_DGRAM, address, shared)


def bind_unix(path: Path, *, stream: bool, permissions: int) -> socket.socket:
    """A listening path. What a dead process left there is replaced; a live one is not."""
    kind = socket.SOCK_STREAM if stream else socket.SOCK_DGRAM
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise Unavailable(f"{path} is in use by another process")
    sock = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o777 & ~permissions)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.setblocking(False)
    return sock


def addresses_of(socks: Iterable[socket.socket]) -> str:
    return ",".join(map(address_of, socks))


def address_of(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, str):
        return name
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def tls_context(receiver: str, options: TlsServerOptions) -> ssl.SSLContext:
    """ConfigError names the option that is at fault, and what is wrong with its file."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[options.min_version]
    key = options.key.get_secret_value()
    # A key that was written into the file, instead of the path to it, must not be shown.
    shown_key = key if "\n" not in key and len(key) < 1000 else "(not a path)"
    _check_readable(receiver, "cert", options.cert, options.cert)
    _check_readable(receiver, "key", key, shown_key)
    password = options.key_password.get_secret_value() if options.key_password else ""
    try:
        # A password is always given: without one, OpenSSL would ask the terminal for it.
        context.load_cert_chain(options.cert, key, password)
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{receiver}: tls.cert {options.cert} and tls.key {shown_key} do not make a pair that "
            f"can be used ({_reason(error)})"
        ) from None
    if options.client_ca is not None:
        _check_readable(receiver, "client_ca", options.client_ca, options.client_ca)
        try:
            context.load_verify_locations(options.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"{receiver}: tls.client_ca {options.client_ca} holds no certificates that can be "
                f"read ({_reason(error)})"
            ) from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(receiver: str, option: str, path: str, shown: str) -> None:
    try:
        with open(path, "rb") as file:
            file.read(1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{receiver}: tls.{option} {shown} cannot be read: {reason}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        known = {
            "KEY_VALUES_MISMATCH": "the key is another certificate's",
            "NO_START_LINE": "not PEM",
            "BAD_DECRYPT": "tls.key_password is wrong",
            "BAD_PASSWORD_READ": "tls.key_password is missing",
        }
        return known.get(error.reason or "", error.reason or "not PEM")
    return logs.describe(error)
