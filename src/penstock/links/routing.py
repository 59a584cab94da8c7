"""Links that decide where messages go."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

from penstock.config.options import NoOptions, Options, Seconds
from penstock.config.registry import Kind, Shape, declare


@declare(
    Kind.LINK,
    "router",
    "Picks the route whose key equals a meta attribute; none fits: unroutable.",
    shape=Shape(max_outputs=None, routed=True),
    available=True,
)
class RouterOptions(Options):
    routing_key: str = Field(min_length=1)
    """The meta attribute to go by."""


class CopyOptions(Options):
    timeout_s: Seconds | None = Field(None, gt=0)
    """A copy that has waited this long for a sink below ends as timed out. Default: it waits for ever."""


@declare(
    Kind.LINK,
    "multiplexer",
    "Copies to every link; the status is composed of theirs.",
    shape=Shape(min_outputs=0, max_outputs=None),
    aliases=("demux", "mpx"),
    available=True,
)
class MultiplexerOptions(CopyOptions):
    pass


@declare(
    Kind.LINK, "demultiplexer", "Merges what comes in.", aliases=("mux", "dmx"), available=True
)
class DemultiplexerOptions(NoOptions):
    pass


@declare(
    Kind.LINK,
    "fanout",
    "Round robin: the destination changes after every message.",
    shape=Shape(max_outputs=None),
    available=True,
)
class FanoutOptions(NoOptions):
    pass


@declare(
    Kind.LINK,
    "replicator",
    "Copies to as many links as `replicas` says, chosen by consistent hash.",
    shape=Shape(max_outputs=None),
    available=True,
)
class ReplicatorOptions(CopyOptions):
    mode: Literal["hash", "each"] = "hash"
    """`hash`: to `replicas` of the links; `each`: to every one."""

    replicas: int | None = Field(None, ge=1)
    """How many links get a copy."""

    hash_key: str | None = Field(
        None, min_length=1, validation_alias=AliasChoices("hash_key", "hashing_key")
    )
    """The meta attribute that decides. Default: the payload."""

    @model_validator(mode="after")
    def _counted(self) -> Self:
        if self.mode == "hash" and self.replicas is None:
            raise ValueError("needs `replicas`, the number of copies (or `mode: each`)")
        return self
