"""Which sinks are held back: since when, why, and when to try them again.

A sink that is slower than its `latency_s` so many times in a row is held, too: it goes on getting its messages, but
from its park, so that nothing else waits for it, until it has taken some of them in time.

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
_REST_S = 0.2
Valve = Literal["open", "held", "closed", "half-open"]


@dataclass(frozen=True, slots=True)
class Policy:
    """How a sink that fails is treated: its own options, and those of a link.buffer above it."""

    backoff: Backoff = field(default_factory=Backoff)
    breaker_failures: int = 5
    breaker_retry_s: float = 5.0
    latency_s: float | None = None
    max_retry: int | None = None  # None: for ever
    timeout_s: float | None = None  # how long a message may wait for the sink; None: for ever


@dataclass(slots=True)
class Hold:
    reason: str
    since_s: float
    failures: int = 1
    stumbles: int = 0  # tries that failed, and not because of the sink
    next_try_s: float = 0.0
    slow: bool = False
    trying: bool = False
    tried_until: dict[int, int] | None = (
        None  # what of the park has had all the tries since `failures` began
    )


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
        self._held: dict[str, Hold] = {}
        self._slow: dict[str, int] = {}  # slow batches in a row, of sinks that are not held
        self._changed = threading.Condition()

    # --- The coordinator's side -----------------------------------------------------------------

    def park(self, sink: str) -> Sink | None:
        # Made anew for each transaction: it notes since when its messages wait.
        return self._make_park(sink) if sink in self._held else None

    def hold(self, sink: str, reason: str) -> Sink:
        park = self._make_park(sink)  # first: what has no park cannot be held
        with self._changed:
            if sink not in self._held:
                hold = Hold(reason[:MAX_REASON_CHARS], time.time())
                hold.next_try_s = self._clock() + self.policy(sink).backoff.delay_s(1)
                self._held[sink] = hold
                self._changed.notify_all()
        return park

    def took(self, sink: str, took_s: float) -> str | None:
        policy = self.policy(sink)
        if policy.latency_s is None or sink in self._held:
            return None
        if took_s <= policy.latency_s:
            self._slow.pop(sink, None)
            return None
        self._slow[sink] = self._slow.get(sink, 0) + 1
        if self._slow[sink] < policy.breaker_failures:
            return None
        del self._slow[sink]
        reason = f"a batch took {took_s:.3g} s, and breaker.latency_s is {policy.latency_s:g}"
        self.hold(sink, reason)
        hold = self._held[sink]
        hold.failures, hold.next_try_s, hold.slow = 0, 0.0, True
        return reason

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

    def stumbled(self, sink: str, reason: str) -> None:
        """It could not be tried, for a reason that is not its own."""
        hold = self._held[sink]
        hold.stumbles += 1
        hold.reason = reason[:MAX_REASON_CHARS]
        hold.next_try_s = self._clock() + Backoff().delay_s(hold.stumbles)

    def succeeded(self, sink: str) -> None:
        """It takes messages again; it stays held until its park is empty."""
        hold = self._held[sink]
        hold.failures = 0
        hold.stumbles = 0
        hold.tried_until = None
        hold.next_try_s = 0.0

    def drained(self, sink: str, took_s: float) -> None:
        """It took part of its park, and this long."""
        hold, limit_s = self._held[sink], self.policy(sink).latency_s
        if hold.slow and limit_s is not None and took_s <= limit_s:
            hold.slow = False

    def rest(self, sink: str) -> None:
        """It is slow, and has everything: nothing to do until there is more for it."""
        self._held[sink].next_try_s = self._clock() + _REST_S

    def given_up(self, sink: str) -> None:
        """What had its tries is gone; what came later has all of its own."""
        hold = self._held[sink]
        hold.failures = 0
        hold.tried_until = None

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
        return (
            "closed" if hold.slow or hold.failures >= self.policy(sink).breaker_failures else "held"
        )
