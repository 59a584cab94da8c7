"""Option groups that peers share, each declared once."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic.json_schema import WithJsonSchema

from penstock.config.address import BindAddress, TargetAddress, without_scheme
from penstock.config.options import Options, Seconds, SizeBytes, Topic
from penstock.limits import (
    LARGEST_MESSAGE_BYTES,
    MAX_CONNECTIONS,
    MAX_INFLIGHT_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PARTITIONS,
    STREAM_IDLE_TIMEOUT_S,
)

# YAML reads an unquoted 1.2 as a number; an editor that checks the schema must not mind.
TlsVersion = Annotated[
    Literal["1.2", "1.3"], WithJsonSchema({"enum": ["1.2", "1.3", 1.2, 1.3], "default": "1.2"})
]


class TlsServerOptions(Options):
    """TLS of a listening socket."""

    cert: str = Field(min_length=1)
    """The file with the certificate and its chain, PEM."""

    key: SecretStr = Field(min_length=1)
    """The file with the private key, PEM."""

    key_password: SecretStr | None = None
    """The password of the key file."""

    client_ca: str | None = None
    """Mutual TLS: clients must show a certificate signed by one of these authorities. A PEM file."""

    min_version: TlsVersion = "1.2"
    """The oldest version of TLS to accept."""


class TlsClientOptions(Options):
    """TLS of an outgoing connection."""

    ca: str | None = None
    """The authorities to trust, a PEM file. Default: those of the system."""

    cert: str | None = None
    """The certificate to show, a PEM file, where the server asks for one."""

    key: SecretStr | None = None
    """The file with the private key of `cert`, PEM."""

    key_password: SecretStr | None = None
    """The password of the key file."""

    server_name: str | None = None
    """The name that the server's certificate must have. Default: the host that is called."""

    min_version: TlsVersion = "1.2"
    """The oldest version of TLS to accept."""


class ReceiverOptions(Options):
    """What every receiver has."""

    topic: Topic | None = None
    """The topic to write to. Default: the flow's name, a dot, and the component's name."""

    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    """Partitions of that topic, when it is made or grows. Default: `system.log.partitions`."""

    max_message_bytes: SizeBytes = Field(MAX_MESSAGE_BYTES, ge=1, le=LARGEST_MESSAGE_BYTES)
    """The largest message to accept."""


class BindOptions(Options):
    """Listens on a network address."""

    schemes: ClassVar[tuple[str, ...]] = ("tcp",)
    """What may stand before the address: `tcp://:7071`, as files of the original relay write it."""

    bind: BindAddress = Field(validation_alias=AliasChoices("bind", "bind_addr"))
    """Where to listen: `host:port`, or `:port` for every interface, IPv4 and IPv6."""

    @field_validator("bind", mode="before")
    @classmethod
    def _scheme_fits(cls, value: object) -> object:
        return without_scheme(value, *cls.schemes) if isinstance(value, str) else value


class ConnectionOptions(Options):
    """Limits of a receiver that holds long connections."""

    max_connections: int = Field(MAX_CONNECTIONS, ge=1)
    """Open connections, in each process. One more is refused."""

    max_inflight_bytes: SizeBytes = Field(MAX_INFLIGHT_BYTES, ge=1)
    """Messages half received, over all connections of a process. The connection that goes past it is
    ended."""

    idle_timeout_s: Seconds = Field(STREAM_IDLE_TIMEOUT_S, gt=0)
    """A connection that is silent this long is closed."""

    reply: Literal["none", "status"] = "none"
    """`status`: answer every message with a line that says what became of it."""


class StatusReplyOptions(Options):
    """What a receiver with `reply: status` does about receipts."""

    reply_timeout_s: Seconds = Field(30.0, gt=0)
    """With `reply: status`: how long a message waits for its receipt; then its line is `timed_out`."""


class BackendOptions(Options):
    """Kept so that files of the original relay load unchanged."""

    backend: Literal["std", "evio"] | None = Field(None, json_schema_extra={"deprecated": True})
    """Chose a network library in the original relay. Has no effect."""


class ReconnectOptions(Options):
    """How a lost connection is made again: exponential backoff with jitter, for ever by default."""

    min_s: Seconds = Field(0.05, gt=0)
    """The first wait."""

    max_s: Seconds = Field(5.0, gt=0)
    """The longest wait."""

    max_attempts: int | None = Field(None, ge=1)
    """Give up after this many attempts in a row. Default: never."""


class BreakerOptions(Options):
    """When the flow to a destination is closed for a while."""

    failures: int = Field(5, ge=1)
    """Failures in a row, or slow batches, that close it."""

    latency_s: Seconds | None = Field(None, gt=0)
    """Close it when a batch takes longer than this to be written. Its messages then come from its park, and
    no other sink waits for it, until it has taken some in time. Default: never."""

    retry_s: Seconds = Field(5.0, gt=0)
    """How long it stays closed before it is probed."""


class DestinationOptions(Options):
    """What every sink that calls someone else has."""

    timeout_s: Seconds = Field(10.0, gt=0)
    """The longest wait for a connection or an answer."""

    reconnect: ReconnectOptions = Field(default_factory=ReconnectOptions)
    """How a lost connection is made again."""

    breaker: BreakerOptions = Field(default_factory=BreakerOptions)
    """When the flow to this destination is closed for a while."""


class AddressOptions(Options):
    """The network address of a destination."""

    schemes: ClassVar[tuple[str, ...]] = ("tcp",)
    """What may stand before the address."""

    address: TargetAddress = Field(
        validation_alias=AliasChoices("address", "bind", "bind_addr", "connect")
    )
    """What to connect to: `host:port`, or `:port` on this machine."""

    @field_validator("address", mode="before")
    @classmethod
    def _scheme_fits(cls, value: object) -> object:
        return without_scheme(value, *cls.schemes) if isinstance(value, str) else value
