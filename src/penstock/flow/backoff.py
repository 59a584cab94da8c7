"""Waits between attempts: doubling, with jitter, up to a limit."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    min_s: float = 0.05
    max_s: float = 5.0

    def delay_s(self, attempt: int) -> float:
        """Before attempt number `attempt` (from 1): half of it is chance, so that many spread out."""
        full_s = min(self.max_s, self.min_s * 2.0 ** min(attempt - 1, 60))
        return full_s * (0.5 + random.random() / 2)  # noqa: S311 (nothing secret hangs on it)
