"""HTTP: a server that takes messages by POST; a client that sends them on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from penstock.config.options import Guarantee, Seconds, SizeBytes, Socket, Texts
from penstock.config.registry import Kind, declare
from penstock.limits import (
    BODY_TIMEOUT_S,
    HEADER_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_INFLIGHT_BYTES,
)
from penstock.peers.options import (
    BindOptions,
    DestinationOptions,
    ReceiverOptions,
    TlsClientOptions,
    TlsServerOptions,
)


class HttpServerOptions(BindOptions, ReceiverOptions):
    path: str = Field("/", pattern=r"^/[!-~]*$", max_length=1000)
    """Messages are POSTed to this path or below it."""

    mode: Literal["auto", "one", "lines", "length_prefixed"] = "auto"
    """What a body holds: `one` message, `lines` with one each, or `length_prefixed` ones. `auto`
    goes by its content type: `application/x-ndjson` is lines, CloudEvents are what they say,
    anything else is one."""

    meta_headers: Texts = Field(default_factory=list, max_length=64)
    """Request headers that become meta, by name, or by the beginning of the name: `x-meta-*`. Query
    parameters always do."""

    max_body_bytes: SizeBytes = Field(MAX_BODY_BYTES, ge=1)
    """The largest body (413 past it)."""

    max_connections: int = Field(MAX_CONNECTIONS, ge=1)
    """Open connections, in each process. One more is refused."""

    max_inflight_bytes: SizeBytes = Field(MAX_INFLIGHT_BYTES, ge=1)
    """Bodies being received, over all connections of a process (503 past it)."""

    header_timeout_s: Seconds = Field(HEADER_TIMEOUT_S, gt=0)
    """From the first byte of a request to the end of its headers."""

    body_timeout_s: Seconds = Field(BODY_TIMEOUT_S, gt=0)
    """The longest silence inside a body."""

    idle_timeout_s: Seconds = Field(IDLE_TIMEOUT_S, gt=0)
    """A kept-alive connection with nothing to do is closed after this long."""

    tokens: list[SecretStr] = Field(default_factory=list, max_length=1000)
    """Bearer tokens of which a sender must show one. Without any, everyone may send."""

    tls: TlsServerOptions | None = None
    """TLS, and mutual TLS with `client_ca`."""

    @field_validator("meta_headers")
    @classmethod
    def _lower(cls, names: list[str]) -> list[str]:
        for name in names:
            if not name or "*" in name[:-1] or not name.isascii() or not name.isprintable():
                raise ValueError("expected header names; `*` may stand at the end only")
        return [name.lower() for name in names]

    @field_validator("tokens")
    @classmethod
    def _not_empty(cls, tokens: list[SecretStr]) -> list[SecretStr]:
        if not all(token.get_secret_value() for token in tokens):
            raise ValueError("expected a token that is not empty")
        return tokens

    def listens(self) -> list[Socket]:
        return [Socket("tcp", self.bind)]


@declare(Kind.RECEIVER, "http", "Takes messages by HTTP POST.", available=True)
class HttpReceiverOptions(HttpServerOptions):
    sync: bool = Field(False, json_schema_extra={"not_yet": True})
    """Answer with the receipt, though the sender did not ask for it."""

    sync_timeout_s: Seconds = Field(30.0, gt=0, json_schema_extra={"not_yet": True})
    """The longest that a sender may wait for its receipt."""


@declare(
    Kind.PEER, "http", "Takes messages by HTTP POST and answers with what the flow sends back."
)
class HttpPeerOptions(HttpServerOptions):
    reply_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a request waits for the flow's answer (504 past it)."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, "an answer that was lost may be asked for again"


@declare(Kind.SINK, "http", "Sends messages by HTTP.")
class HttpSinkOptions(DestinationOptions):
    url: str = Field(pattern=r"^(https?://|\$\{)", max_length=4096)
    """Where to send."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The request method."""

    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """Headers to send with every request."""

    batch: bool = False
    """Send many messages in one body, as NDJSON."""

    tls: TlsClientOptions = Field(default_factory=TlsClientOptions)
    """TLS, where the URL begins with https."""

    def promise(self) -> tuple[Guarantee, str]:
        return (
            Guarantee.AT_LEAST_ONCE,
            "HTTP cannot prepare; a request may be repeated after a crash",
        )
