"""TCP: a server with one stream a connection; a client that reconnects."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.options import Seconds, Socket
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import (
    AddressOptions,
    BackendOptions,
    BindOptions,
    ConnectionOptions,
    DestinationOptions,
    ReceiverOptions,
    StatusReplyOptions,
    TlsClientOptions,
    TlsServerOptions,
)

NO_REPLY = "a sender is not told what was stored when its connection breaks; set `reply: status`"
LOST_REPLY = "a sender that never got its answer and sends again makes a second message"
CANNOT_PREPARE = "the connection cannot prepare; messages may be repeated after a crash"
UNANSWERED = "what the other side has not dealt with when it dies is lost; set `reply: status`"


class TcpServerOptions(BindOptions, ConnectionOptions, BackendOptions, ReceiverOptions):
    tls: TlsServerOptions | None = None
    """TLS, and mutual TLS with `client_ca`."""

    def listens(self) -> list[Socket]:
        return [Socket("tcp", self.bind)]

    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",)


@declare(
    Kind.RECEIVER, "tcp", "Takes messages from TCP connections, one stream each.", available=True
)
class TcpReceiverOptions(TcpServerOptions, StatusReplyOptions):
    def promise(self) -> tuple[Guarantee, str]:
        if self.reply == "none":
            return Guarantee.AT_MOST_ONCE, NO_REPLY
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


@declare(Kind.PEER, "tcp", "Takes messages from TCP connections and answers on them.")
class TcpPeerOptions(TcpServerOptions):
    reply_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a message waits for the flow's answer."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


class StreamSinkOptions(DestinationOptions):
    """What sinks have that send over a connection."""

    reply: Literal["none", "status"] = "none"
    """`status`: wait until the other side has answered each message with a line that says what became
    of it, as receivers with `reply: status` do."""

    def promise(self) -> tuple[Guarantee, str]:
        if self.reply == "none":
            return Guarantee.BEST_EFFORT, UNANSWERED
        return Guarantee.AT_LEAST_ONCE, CANNOT_PREPARE


@declare(
    Kind.SINK,
    "tcp",
    "Sends messages over a TCP connection, one a line by default.",
    available=True,
)
class TcpSinkOptions(AddressOptions, StreamSinkOptions):
    tls: TlsClientOptions | None = None
    """TLS to the destination."""

    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",)
