"""The nearest right spelling of a wrong word."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_MAX_CHARS = 80
_SHORTLIST = 5


def nearest(wrong: str, right: Sequence[str]) -> str | None:
    """The right spelling that `wrong` most likely stands for, or None if nothing is close."""
    by_lower = {name.lower(): name for name in right}
    typed = wrong[:_MAX_CHARS].lower()
    if typed in by_lower:
        return by_lower[typed]
    close = difflib.get_close_matches(typed, list(by_lower), n=_SHORTLIST, cutoff=0.6)
    # The ratio does not see that two letters changed places; the distance does.
    return by_lower[min(close, key=lambda name: _distance(typed, name))] if close else None


def _distance(one: str, other: str) -> int:
    """Letters to add, drop, change or swap with their neighbour."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        before, last = last, row
    return last[-1]
