"""Links that decide when messages go on."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from penstock.config.options import Options, Seconds
from penstock.config.registry import Kind, declare


@declare(Kind.LINK, "buffer", "Retries what failed below it.", available=True)
class BufferOptions(Options):
    max_retry: int = Field(10, ge=0, validation_alias=AliasChoices("max_retry", "max_retries"))
    """Attempts after the first one. When they are used up, the message ends as failed there. What waits is tried
    at least once."""

    backoff_min_s: Seconds = Field(0.05, gt=0)
    """The first wait; it doubles each time, with jitter."""

    backoff_max_s: Seconds = Field(5.0, gt=0)
    """The longest wait."""

    timeout_s: Seconds = Field(10.0, gt=0)
    """The longest that a sink below may wait for its destination in one attempt."""


@declare(Kind.LINK, "throttler", "Lets so many messages a second through.", available=True)
class ThrottlerOptions(Options):
    rps: float = Field(gt=0)
    """Messages a second."""

    burst: int | None = Field(None, ge=1)
    """How many may come at once after a pause. Default: what one second allows."""

    key: str | None = Field(None, min_length=1, validation_alias=AliasChoices("key", "msgkey"))
    """Count separately for each value of this meta attribute."""

    mode: Literal["reject", "delay"] = "reject"
    """What becomes of the rest: `reject` ends them as throttled, `delay` holds them back."""
