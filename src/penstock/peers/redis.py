"""Redis: streams with groups, lists, and publish/subscribe."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from penstock.config.options import Options, Texts
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import DestinationOptions, ReceiverOptions, TlsClientOptions

PUBSUB = "publish/subscribe keeps nothing for a subscriber that is away"


class RedisOptions(Options):
    url: SecretStr = Field(SecretStr("redis://127.0.0.1:6379/0"), min_length=1)
    """Where Redis is: `redis://`, `rediss://` or `unix://`. May hold a password."""

    tls: TlsClientOptions = Field(default_factory=TlsClientOptions)
    """TLS, where the URL begins with rediss."""


class RedisSourceOptions(Options):
    mode: Literal["stream", "list", "pubsub"] = "stream"
    """What the keys are: streams, lists, or channels."""

    keys: Texts = Field(min_length=1)
    """The streams, lists or channels to read."""

    group: str = Field("penstock", min_length=1)
    """The consumer group, of streams."""

    start: Literal["beginning", "end"] = "beginning"
    """Where a new group begins."""


class RedisTargetOptions(Options):
    mode: Literal["stream", "list", "pubsub"] = "stream"
    """What the key is: a stream, a list, or a channel."""

    key: str = Field(min_length=1)
    """The stream, list or channel to write."""

    max_entries: int | None = Field(None, ge=1)
    """Trim the stream or list to about this many entries. Default: never."""


@declare(Kind.RECEIVER, "redis", "Reads Redis streams, lists or channels.")
class RedisReceiverOptions(RedisOptions, RedisSourceOptions, ReceiverOptions):
    def promise(self) -> tuple[Guarantee, str]:
        if self.mode == "pubsub":
            return Guarantee.AT_MOST_ONCE, PUBSUB
        return Guarantee.EXACTLY_ONCE, ""


@declare(Kind.SINK, "redis", "Writes a Redis stream, list or channel.")
class RedisSinkOptions(RedisOptions, RedisTargetOptions, DestinationOptions):
    def promise(self) -> tuple[Guarantee, str]:
        if self.mode == "pubsub":
            return Guarantee.BEST_EFFORT, PUBSUB
        return Guarantee.EXACTLY_ONCE, ""


@declare(Kind.PEER, "redis", "Reads and writes Redis.")
class RedisPeerOptions(RedisOptions, ReceiverOptions):
    receive: RedisSourceOptions
    """What to read."""

    send: RedisTargetOptions
    """What to write."""

    def promise(self) -> tuple[Guarantee, str]:
        if "pubsub" in (self.receive.mode, self.send.mode):
            return Guarantee.BEST_EFFORT, PUBSUB
        return Guarantee.EXACTLY_ONCE, ""
