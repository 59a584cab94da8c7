"""A clock that stands still until a test moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

START = datetime(2026, 1, 1, tzinfo=UTC)
"""When a test begins, unless it says otherwise: the same time in every run."""


class Clock:
    """What a flow under test takes for the time.

    It gives inputs their times, each `step_s` after the one before, and links with state (windows, throttlers)
    run on the times of messages. It is **not** what a function of yours reads from `time.time()`: take
    the time from the message. Waits of Penstock's own, as for a sink that is gone, pass at once.
    """

    def __init__(self, start: datetime = START, step_s: float = 1.0) -> None:
        if start.tzinfo is None:
            raise ValueError(f"{start} has no time zone; use datetime(..., tzinfo=UTC)")
        self._start = start
        self._passed_s = 0.0
        self.step_s = step_s

    @property
    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._passed_s)

    def advance(self, seconds: float) -> None:
        """Forward only. For a message that comes late, give it a time of its own."""
        if seconds < 0:
            raise ValueError(f"a clock goes forward: advance({seconds})")
        self._passed_s += seconds

    def tick(self) -> datetime:
        """The time now; the next one comes a step later."""
        now = self.now
        self._passed_s += self.step_s
        return now
