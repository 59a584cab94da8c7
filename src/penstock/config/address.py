"""Network addresses, as files, settings and the command line write them. One parser for all.

    127.0.0.1:7071   localhost:7071   [::1]:7071     this host
    7071                                             the loopback host
    :7071   *:7071                                   every interface (to call: this one)

Nothing listens on every interface unless it was written so.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

LOOPBACK = "127.0.0.1"
EVERY_INTERFACE = ""

_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_PORT = re.compile(r"[0-9]{1,5}")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,15})://")

ADDRESS_EXPECTED = "expected an address, such as 127.0.0.1:7071, [::1]:7071 or :7071"


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """A host and a port. The host `""` stands for every interface; port 0 for any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises ValueError, with what was expected."""
        host, colon, port = text.strip().rpartition(":")
        if not _PORT.fullmatch(port):
            what = "the port is missing" if not colon else "the port is not a number"
            raise ValueError(f"{ADDRESS_EXPECTED}; {what}")
        if int(port) > 65535:
            raise ValueError(f"{ADDRESS_EXPECTED}; a port is at most 65535")
        return cls(_check_host(host) if colon else LOOPBACK, int(port))

    @property
    def every_interface(self) -> bool:
        return self.host in (EVERY_INTERFACE, "0.0.0.0", "::")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def overlaps(self, other: Address) -> bool:
        """Whether both cannot be listened on at once. Host names are not looked up."""
        if self.port != other.port or self.port == 0:
            return False
        return (
            self.host == other.host
            or self.every_interface
            or other.every_interface
            or ("localhost" in (self.host, other.host) and self.loopback and other.loopback)
        )

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _check_host(host: str) -> str:
    if host in ("", "*"):
        return EVERY_INTERFACE
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ValueError:
            raise ValueError(f"{ADDRESS_EXPECTED}; not an IPv6 address in [ ]") from None
    if ":" in host:
        raise ValueError(f"{ADDRESS_EXPECTED}; write an IPv6 address in [ ]")
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise ValueError(f"{ADDRESS_EXPECTED}; the host has characters no host name has")
    return host


def without_scheme(text: str, *schemes: str) -> str:
    """`tcp://host:1` is `host:1` where the scheme is one of those given; ValueError if another."""
    match = _SCHEME.match(text)
    if match is None:
        return text
    if match[1] not in schemes:
        raise ValueError(f"{match[1]}:// does not fit here; expected {' or '.join(schemes)}")
    return text[match.end() :]


def _parse_bind(value: object) -> Address:
    """Of anything that listens on TCP; who takes fewer schemes has looked at them before."""
    if isinstance(value, Address):
        return value
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(ADDRESS_EXPECTED)
    return Address.parse(without_scheme(str(value), "tcp", "http", "https", "ws", "wss"))


def _parse_target(value: object) -> Address:
    address = _parse_bind(value)
    if address.port == 0:
        raise ValueError(f"{ADDRESS_EXPECTED}; port 0 cannot be called")
    return Address(LOOPBACK, address.port) if address.host == EVERY_INTERFACE else address


_JSON_SCHEMA = WithJsonSchema({"type": ["string", "integer"], "examples": ["127.0.0.1:7071"]})

BindAddress = Annotated[Address, PlainValidator(_parse_bind), PlainSerializer(str), _JSON_SCHEMA]
"""Where to listen."""

TargetAddress = Annotated[
    Address, PlainValidator(_parse_target), PlainSerializer(str), _JSON_SCHEMA
]
"""What to connect to."""
