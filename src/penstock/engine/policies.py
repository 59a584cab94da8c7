"""How a sink that fails is treated, from its own options and those of a link.buffer above it."""

from __future__ import annotations

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
    if retry is None:
        backoff = Backoff(reconnect.min_s, reconnect.max_s)
        return Policy(backoff, breaker.failures, breaker.retry_s, reconnect.max_attempts)
    return Policy(
        Backoff(retry.backoff_min_s, retry.backoff_max_s),
        max(breaker.failures, retry.max_retry + 1),
        breaker.retry_s,
        retry.max_retry,
    )
