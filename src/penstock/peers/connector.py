"""The connector protocol: programs that push events, and take part in two-phase commits."""

from __future__ import annotations

from pydantic import Field, SecretStr

from penstock.config.options import Options, Seconds, Socket
from penstock.config.registry import Kind, declare
from penstock.limits import MAX_CONNECTIONS
from penstock.peers.options import BindOptions, ReceiverOptions, TlsServerOptions


class ConnectorOptions(BindOptions):
    cookie: SecretStr = Field(min_length=1)
    """The secret that both sides know."""

    tls: TlsServerOptions | None = None
    """TLS, and mutual TLS with `client_ca`."""

    max_connections: int = Field(MAX_CONNECTIONS, ge=1)
    """Open connections, in each process. One more is refused."""

    def listens(self) -> list[Socket]:
        return [Socket("tcp", self.bind)]


class CommitOptions(Options):
    prepare_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a program may take to vote."""


@declare(Kind.RECEIVER, "connector", "Takes events from programs that use the SDK.")
class ConnectorReceiverOptions(ConnectorOptions, ReceiverOptions):
    pass


@declare(Kind.SINK, "connector", "Hands events to programs, with two-phase commit.")
class ConnectorSinkOptions(ConnectorOptions, CommitOptions):
    pass


@declare(Kind.PEER, "connector", "Takes events from programs and hands events to them.")
class ConnectorPeerOptions(ConnectorOptions, CommitOptions, ReceiverOptions):
    pass
