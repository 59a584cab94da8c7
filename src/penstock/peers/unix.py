"""Unix sockets: streams as TCP has them, or datagrams as UDP has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, model_validator
from pydantic.json_schema import WithJsonSchema

from penstock.config.address import without_scheme
from penstock.config.options import Seconds, Socket
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import BackendOptions, ConnectionOptions, StatusReplyOptions
from penstock.peers.tcp import LOST_REPLY, NO_REPLY, StreamSinkOptions
from penstock.peers.udp import DatagramOptions

# The kernel's limit, with the byte that ends the path.
MAX_SOCKET_PATH_BYTES = 107


def _path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    path = without_scheme(value, "unix")
    if not path or "\0" in path or len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"expected a path of 1 to {MAX_SOCKET_PATH_BYTES} bytes")
    return path


def _permissions(value: Any) -> Any:
    """Octal, as chmod takes it. A number was read as octal by someone else already."""
    if not isinstance(value, str):
        return value
    try:
        return int(value.removeprefix("0o"), 8)
    except ValueError:
        raise ValueError("expected permissions in octal, such as 0660") from None


SocketPath = Annotated[str, BeforeValidator(_path)]
Permissions = Annotated[
    int, BeforeValidator(_permissions), WithJsonSchema({"type": ["string", "integer"]})
]


class UnixServerOptions(ConnectionOptions, BackendOptions, DatagramOptions):
    path: SocketPath = Field(validation_alias=AliasChoices("path", "bind", "bind_addr"))
    """The socket's path. A socket that a dead process left there is replaced."""

    mode: Literal["stream", "datagram"] = "stream"
    """`stream`: connections, one stream each; `datagram`: one message a datagram."""

    permissions: Permissions = Field(
        0o600, ge=0, le=0o777, json_schema_extra={"shown": {"type": "octal", "default": "0600"}}
    )
    """Who may connect, as chmod takes it in octal."""

    def listens(self) -> list[Socket]:
        return [Socket("unix", self.path)]

    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",) if self.mode == "stream" else ()


@declare(Kind.RECEIVER, "unix", "Takes messages from a unix socket.", available=True)
class UnixReceiverOptions(UnixServerOptions, StatusReplyOptions):
    def promise(self) -> tuple[Guarantee, str]:
        if self.mode == "datagram":
            return Guarantee.AT_MOST_ONCE, "the sender of a datagram is not told what was stored"
        if self.reply == "none":
            return Guarantee.AT_MOST_ONCE, NO_REPLY
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


@declare(Kind.PEER, "unix", "Takes messages from a unix socket and answers on it.")
class UnixPeerOptions(UnixServerOptions):
    reply_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a message waits for the flow's answer."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, LOST_REPLY


@declare(Kind.SINK, "unix", "Sends messages to a unix socket.", available=True)
class UnixSinkOptions(StreamSinkOptions):
    path: SocketPath = Field(validation_alias=AliasChoices("path", "address", "bind", "bind_addr"))
    """The socket's path."""

    mode: Literal["stream", "datagram"] = "stream"
    """`stream`: a connection; `datagram`: one message a datagram."""

    @model_validator(mode="after")
    def _only_streams_are_answered(self) -> Self:
        if self.mode == "datagram" and self.reply != "none":
            raise ValueError("`reply` needs `mode: stream`: nobody answers a datagram")
        return self

    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",) if self.mode == "stream" else ()
