"""Which sinks are held back: since when, why, and when to try them again.

A sink that fails is held at once, since what comes later must not overtake what it has missed. It is tried
again after a wait that doubles; after `failures` in a row its circuit breaker closes, and it is only probed
every `retry_s`. (As everywhere in Penstock, *open* means that data may flow, as of a valve.)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from penstock import logs
from penstock.flow.backoff import Backoff
from penstock.limits import MAX_REASON_CHARS
from penstock.sinks.interface import Sink

log = logs.get("engine")
Valve = Literal["open", "held", "closed", "half-open"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a sink that fails is treated: its own options, and those of a link.buffer above it."""

    backoff: Backoff = field(default_factory=Backoff)
    breaker_failures: int = 5
    breaker_retry_s: float = 5.0
    max_retry: int | None = None  # None: for ever


@dataclass(slots=True)
class Hold:
    reason: str
    since_s: float
    failures: int = 1
    next_try_s: float = 0.0
    trying: bool = False


class SinkHolds:
    """The holds of one piece. Asked by its coordinator, and by the drains."""

    def __init__(
        self,
        parks: Callable[[str], Sink],
        policies: dict[str, Policy],
        *,
        clock: Callable[[], float] = time.monotonic,
        stopping: threading.Event | None = None,
    ) -> None:
        self._make_park = parks
        self._policies = policies
        self._clock = clock
        self._stopping = stopping or threading.Event()
        self._parks: dict[str, Sink] = {}
        self._held: dict[str, Hold] = {}
        self._changed = threading.Condition()

    # --- The coordinator's side -----------------------------------------------------------------

    def park(self, sink: str) -> Sink | None:
        return self._park(sink) if sink in self._held else None

    def hold(self, sink: str, reason: str) -> Sink:
        with self._changed:
            if sink not in self._held:
                hold = Hold(reason[:MAX_REASON_CHARS], time.time())
                hold.next_try_s = self._clock() + self.policy(sink).backoff.delay_s(1)
                self._held[sink] = hold
                self._changed.notify_all()
        return self._park(sink)

    def wait(self, attempt: int) -> None:
        self._stopping.wait(Backoff().delay_s(attempt))

    # --- The drains' side -----------------------------------------------------------------------

    def policy(self, sink: str) -> Policy:
        return self._policies.get(sink) or Policy()

    def held(self) -> dict[str, Hold]:
        return dict(self._held)

    def due(self, sink: str) -> bool:
        hold = self._held.get(sink)
        return hold is not None and self._clock() >= hold.next_try_s

    def failed(self, sink: str, reason: str) -> int:
        """It was tried and failed again. Says how often in a row."""
        hold, policy = self._held[sink], self.policy(sink)
        hold.failures += 1
        hold.reason = reason[:MAX_REASON_CHARS]
        hold.trying = False
        wait_s = (
            policy.breaker_retry_s
            if hold.failures >= policy.breaker_failures
            else policy.backoff.delay_s(hold.failures)
        )
        hold.next_try_s = self._clock() + wait_s
        return hold.failures

    def succeeded(self, sink: str) -> None:
        """It takes messages again; it stays held until its park is empty."""
        hold = self._held[sink]
        hold.failures = 0
        hold.next_try_s = 0.0

    def release(self, sink: str) -> None:
        hold = self._held.pop(sink, None)
        if hold is not None:
            held_s = round(time.time() - hold.since_s, 1)
            log.info("sink is back", sink=sink, held_s=held_s)

    def wait_for_work(self, timeout_s: float) -> None:
        """Until a sink is held, or the time is up."""
        with self._changed:
            self._changed.wait(timeout_s)

    def valve(self, sink: str) -> Valve:
        """For people: `open` lets data flow; `held` and `closed` stop it before this sink."""
        hold = self._held.get(sink)
        if hold is None:
            return "open"
        if hold.trying:
            return "half-open"
        return "closed" if hold.failures >= self.policy(sink).breaker_failures else "held"

    def _park(self, sink: str) -> Sink:
        if sink not in self._parks:
            self._parks[sink] = self._make_park(sink)
        return self._parks[sink]
