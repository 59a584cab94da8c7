"""How long to wait before a process is started again: doubling, with jitter, bounded, for ever."""

from __future__ import annotations

import random

from penstock.limits import RESTART_HEALTHY_S, RESTART_MAX_S, RESTART_MIN_S


class Backoff:
    """Counts the failures in a row. RESTART_HEALTHY_S of health make the next one the first."""

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()  # noqa: S311 - jitter is no secret
        self._failures = 0

    def next_delay_s(self, healthy_s: float) -> float:
        """After a life that was healthy for `healthy_s`."""
        if healthy_s >= RESTART_HEALTHY_S:
            self._failures = 0
        longest_s = min(RESTART_MAX_S, RESTART_MIN_S * 2.0**self._failures)
        # Past the longest delay there is nothing left to count.
        self._failures = min(self._failures + 1, 32)
        return max(RESTART_MIN_S, longest_s * self._rng.uniform(0.5, 1.0))
