"""The reply: an answer on the very connection that a message's origin came from."""

from __future__ import annotations

from pydantic import Field

from penstock.config.options import Options, Seconds
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee


@declare(Kind.SINK, "reply", "Answers the caller that the message came from.")
class ReplySinkOptions(Options):
    timeout_s: Seconds = Field(10.0, gt=0)
    """How long the connection may take to accept the answer."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_MOST_ONCE, "a caller that has gone cannot be answered"
