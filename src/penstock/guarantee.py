"""How often a message arrives: what sinks promise, flows declare, and `penstock check` works out."""

from __future__ import annotations

from enum import IntEnum


class Guarantee(IntEnum):
    """How often a message arrives. The weakest part of a path decides for all of it."""

    UNKNOWN = -1  # a plugin says nothing; whatever a flow declares, this is not enough
    BEST_EFFORT = 0  # may be lost, may be repeated
    AT_MOST_ONCE = 1
    AT_LEAST_ONCE = 2
    EXACTLY_ONCE = 3

    def __str__(self) -> str:
        return self.name.lower()


DECLARABLE = tuple(level for level in Guarantee if level is not Guarantee.UNKNOWN)
"""What a flow may ask for."""
