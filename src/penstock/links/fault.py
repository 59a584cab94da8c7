"""The link that a test puts before a component to make it fail. No flow file can name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.config.options import Options
from penstock.status import Status

MODULE = "link.fault"


class FaultOptions(Options):
    """Not declared: `penstock.testing` makes it."""

    strikes: Callable[[Any], Any]
    """Given an Arrow batch of events, says of each whether it ends here. Runs in tasks."""

    status: Status
    """What the events that it strikes end as."""

    reason: str
    """And why."""
