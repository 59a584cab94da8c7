"""The link that a test puts before a component to make it fail. No flow file can name it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.config.flow import Component
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

    before: str
    """The component whose fault it is, if that is a link: what looks at its links' names sees this one."""

    behind: str
    """The component whose messages come here, if it is one alone: what is next calls them by its name."""


def target_name(target: Component) -> str:
    """What a component that messages are sent to is called by who sends them."""
    options = target.options
    return options.before if isinstance(options, FaultOptions) else target.name


def source_name(source: Component) -> str:
    """What a component is called by who is given its messages."""
    options = source.options
    return options.behind if isinstance(options, FaultOptions) else source.name
