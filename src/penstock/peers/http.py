"""HTTP: a server that takes messages by POST; a client that sends them on."""

from __future__ import annotations

import re
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from penstock.config.options import Seconds, SizeBytes, Socket, Texts
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.limits import (
    BODY_TIMEOUT_S,
    HEADER_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    MAX_BODY_BYTES,
    MAX_CONNECTIONS,
    MAX_HEADERS,
    MAX_INFLIGHT_BYTES,
)
from penstock.peers.options import (
    BindOptions,
    DestinationOptions,
    ReceiverOptions,
    TlsClientOptions,
    TlsServerOptions,
)

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
_OWN_HEADERS = frozenset(
    ("connection", "content-length", "host", "idempotency-key", "te", "transfer-encoding")
)


class HttpServerOptions(BindOptions, ReceiverOptions):
    carries_ids = True
    schemes = ("tcp", "http", "https")

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
    sync: bool = False
    """Answer with the receipt, though the sender did not ask for it. `Prefer: respond-async` opts out."""

    sync_timeout_s: Seconds = Field(30.0, gt=0)
    """The longest that a sender may wait for its receipt."""


@declare(
    Kind.PEER, "http", "Takes messages by HTTP POST and answers with what the flow sends back."
)
class HttpPeerOptions(HttpServerOptions):
    reply_timeout_s: Seconds = Field(30.0, gt=0)
    """How long a request waits for the flow's answer (504 past it)."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_LEAST_ONCE, "an answer that was lost may be asked for again"


@declare(Kind.SINK, "http", "Sends messages by HTTP.", available=True)
class HttpSinkOptions(DestinationOptions):
    url: str = Field(pattern=r"^(https?://|\$\{)", max_length=4096)
    """Where to send."""

    method: Literal["POST", "PUT", "PATCH"] = "POST"
    """The request method."""

    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=MAX_HEADERS)
    """Headers to send with every request. `Content-Type` goes by the codec, if it is not given."""

    batch: bool = False
    """Send many messages in one body, as NDJSON."""

    connections: int = Field(4, ge=1, le=64)
    """Connections that a task uses at a time. A stream's messages go over one, in order."""

    tls: TlsClientOptions = Field(default_factory=TlsClientOptions)
    """TLS, where the URL begins with https."""

    @field_validator("url")
    @classmethod
    def _has_a_host(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("expected a URL, such as https://example.org/events") from None
        if not parts.hostname or port == 0 or not url.isascii() or not url.isprintable():
            raise ValueError("expected a URL, such as https://example.org/events")
        if " " in url or parts.fragment:
            raise ValueError("a URL that is sent to has no spaces and no fragment")
        if parts.username is not None or parts.password is not None:
            raise ValueError("put credentials into `headers`, by reference, and not into the URL")
        return url

    @field_validator("headers")
    @classmethod
    def _can_be_sent(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, value in headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no header name")
            if name.lower() in _OWN_HEADERS:
                raise ValueError(f"{name} is set by Penstock itself")
            if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
                raise ValueError(f"the value of {name} has characters that no header can have")
        return headers

    def promise(self) -> tuple[Guarantee, str]:
        return (
            Guarantee.AT_LEAST_ONCE,
            "HTTP cannot prepare; a request may be repeated after a crash",
        )
