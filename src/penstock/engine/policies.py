"""How a sink that fails is treated, from its own options and those of links above it."""

from __future__ import annotations

from dataclasses import replace

from penstock.config.flow import Component
from penstock.flow.backoff import Backoff
from penstock.flow.holds import Policy
from penstock.flow.plan import Piece
from penstock.peers.options import BreakerOptions, DestinationOptions, ReconnectOptions


def policy(piece: Piece, sink: str) -> Policy:
    component = piece.components.get(sink)
    options = None if component is None else component.options
    own = options if isinstance(options, DestinationOptions) else None
    reconnect = ReconnectOptions() if own is None else own.reconnect
    breaker = BreakerOptions() if own is None else own.breaker
    retry = piece.retries.get(sink)
    timeout_s = piece.timeouts_s.get(sink)
    if retry is None:
        backoff = Backoff(reconnect.min_s, reconnect.max_s)
        most = reconnect.max_attempts
        return Policy(
            backoff, breaker.failures, breaker.retry_s, breaker.latency_s, most, timeout_s
        )
    return Policy(
        Backoff(retry.backoff_min_s, retry.backoff_max_s),
        max(breaker.failures, retry.max_retry + 1),
        breaker.retry_s,
        breaker.latency_s,
        retry.max_retry,
        timeout_s,
    )


def with_timeout(piece: Piece, component: Component) -> Component:
    """A sink below a link.buffer waits no longer for its destination than the link says."""
    retry = piece.retries.get(component.name)
    own_s = getattr(component.options, "timeout_s", None)
    if retry is None or own_s is None or own_s <= retry.timeout_s:
        return component
    options = component.options.model_copy(update={"timeout_s": retry.timeout_s})
    return replace(component, options=options)
