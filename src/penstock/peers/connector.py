"""The connector protocol: programs that push events, and take part in two-phase commits."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from penstock.config.address import TargetAddress
from penstock.config.options import Options, Seconds, SizeBytes, Socket
from penstock.config.registry import Kind, declare
from penstock.limits import (
    CONNECTOR_CREDITS,
    MAX_CONNECTIONS,
    MAX_CONNECTOR_FRAME_BYTES,
    MAX_CONNECTOR_WORKERS,
    MAX_FRAME_BYTES,
)
from penstock.peers.options import (
    AddressOptions,
    BindOptions,
    DestinationOptions,
    ReceiverOptions,
    TlsClientOptions,
    TlsServerOptions,
)

VERSION = "v0.0.1"
"""What most programs in the field say."""


class HelloOptions(Options):
    version: str = Field(VERSION, max_length=100)
    """The protocol's version. Both sides must say the same; programs in the field say `v0.0.1` or
    `0.0.1`."""

    cookie: SecretStr = SecretStr("")
    """The secret that both sides know. An empty one meets an empty one."""


class ConnectorServerOptions(HelloOptions, BindOptions, ReceiverOptions):
    credits: int = Field(CONNECTOR_CREDITS, ge=1, le=2**31)
    """Frames that a program may send before any of them is durable."""

    max_frame_bytes: SizeBytes = Field(MAX_CONNECTOR_FRAME_BYTES, ge=1024, le=MAX_FRAME_BYTES)
    """A larger frame is refused, and the connection closed."""

    event_time: Literal["ns", "us", "ms", "s", "ignore"] = "ns"
    """The unit of a message's event time, since 1970. `ignore`: the time of arrival counts."""

    restart_address: TargetAddress | None = None
    """Where programs are sent when this receiver stops. Default: they come back here."""

    max_connections: int = Field(MAX_CONNECTIONS, ge=1)
    """Open connections. One more is refused."""

    tls: TlsServerOptions | None = None
    """TLS, and mutual TLS with `client_ca`."""

    def listens(self) -> list[Socket]:
        return [Socket("tcp", self.bind)]


class CommitOptions(Options):
    vote_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a program may take to vote."""

    connect_timeout_s: Seconds = Field(10.0, gt=0)
    """How long a program may take to accept a connection, and to say what it holds."""

    workers: int = Field(4, ge=1, le=MAX_CONNECTOR_WORKERS)
    """Task slots: how many connections carry data at the same time. A batch of the flow has at most this
    many tasks."""


@declare(
    Kind.RECEIVER,
    "connector",
    "Takes events from programs that speak the connector protocol.",
    available=True,
)
class ConnectorReceiverOptions(ConnectorServerOptions):
    pass


@declare(
    Kind.SINK,
    "connector",
    "Hands events to programs, exactly once, by two-phase commit.",
    available=True,
)
class ConnectorSinkOptions(HelloOptions, CommitOptions, AddressOptions, DestinationOptions):
    timeout_s: Seconds = Field(10.0, gt=0)
    """How long a program may take no data while it is sent some."""

    tls: TlsClientOptions | None = None
    """TLS to the program."""


@declare(Kind.PEER, "connector", "Takes events from programs and hands events to them.")
class ConnectorPeerOptions(ConnectorServerOptions, CommitOptions):
    address: TargetAddress
    """The program to hand events to."""
