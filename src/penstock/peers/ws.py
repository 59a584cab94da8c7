"""WebSocket: server and client, as source and as sink. One stream a connection."""

from __future__ import annotations

from typing import Self

from pydantic import AliasChoices, Field, SecretStr, model_validator

from penstock.config.address import BindAddress
from penstock.config.options import Options, Seconds, Socket
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import (
    ConnectionOptions,
    ReceiverOptions,
    ReconnectOptions,
    TlsClientOptions,
    TlsServerOptions,
)
from penstock.peers.tcp import CANNOT_PREPARE, LOST_REPLY, NO_REPLY


class WsOptions(Options):
    """A server with `bind`, or a client with `url`."""

    bind: BindAddress | None = Field(None, validation_alias=AliasChoices("bind", "bind_addr"))
    """Be a server, and listen here."""

    path: str = Field("/", pattern=r"^/[!-~]*$", max_length=1000)
    """As a server: the path to accept connections on."""

    tokens: list[SecretStr] = Field(default_factory=list, max_length=1000)
    """As a server: bearer tokens of which a client must show one."""

    tls: TlsServerOptions | None = None
    """As a server: TLS, and mutual TLS with `client_ca`."""

    url: str | None = Field(None, pattern=r"^wss?://", max_length=4096)
    """Be a client, and connect here."""

    token: SecretStr | None = None
    """As a client: the bearer token to show."""

    client_tls: TlsClientOptions = Field(default_factory=TlsClientOptions)
    """As a client: TLS, where the URL begins with wss."""

    reconnect: ReconnectOptions = Field(default_factory=ReconnectOptions)
    """As a client: how a lost connection is made again."""

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.bind is None) == (self.url is None):
            raise ValueError("expected either `bind` (a server) or `url` (a client)")
        return self

    def listens(self) -> list[Socket]:
        return [] if self.bind is None else [Socket("tcp", self.bind)]


@declare(Kind.RECEIVER, "ws", "Takes messages from WebSocket connections.")
class WsReceiverOptions(WsOptions, ConnectionOptions, ReceiverOptions):
    def promise(self) -> tuple[Guarantee, str]:
        if self.reply == "none":
            return Guarantee.AT_MOST_ONCE, NO_REPLY
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


@declare(Kind.PEER, "ws", "Takes messages from WebSocket connections and answers on them.")
class WsPeerOptions(WsOptions, ConnectionOptions, ReceiverOptions):
    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


@declare(Kind.SINK, "ws", "Sends messages to WebSocket connections.")
class WsSinkOptions(WsOptions):
    timeout_s: Seconds = Field(10.0, gt=0)
    """The longest wait for a connection to take a message."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, CANNOT_PREPARE
