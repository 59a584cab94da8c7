"""What a link.buffer asks of the sinks below it."""

from __future__ import annotations

import pytest

from penstock.engine.policies import policy, with_timeout
from penstock.flow.graph import Graph
from penstock.flow.plan import Piece
from penstock.flow.planner import plan
from tests.config.files import flow_of

FLOW = """
components:
  web: {module: receiver.http, params: {bind: 127.0.0.1:7071}}
  retry: {module: link.buffer, params: {max_retry: 7, timeout_s: 2, backoff_min_s: 0.5, backoff_max_s: 3}}
  far: {module: sink.http, params: {url: "http://127.0.0.1:9/", timeout_s: TIMEOUT, breaker: {latency_s: 0.5}}}
pipeline: {web: {connect: retry}, retry: {connect: far}}
"""


def piece_of(timeout_s: int) -> Piece:
    [piece] = plan(Graph(flow_of(FLOW.replace("TIMEOUT", str(timeout_s))))).pieces
    return piece


@pytest.mark.parametrize(("own_s", "expected_s"), [(1, 1.0), (2, 2.0), (30, 2.0)])
def test_one_attempt_takes_no_longer_than_the_buffer_allows(own_s: int, expected_s: float) -> None:
    piece = piece_of(own_s)
    options = with_timeout(piece, piece.components["far"]).options
    assert options.timeout_s == expected_s  # type: ignore[attr-defined]


def test_the_breaker_does_not_close_before_the_retries_are_used_up() -> None:
    found = policy(piece_of(1), "far")
    assert (found.max_retry, found.breaker_failures) == (7, 8)
    assert found.latency_s == 0.5
    assert (found.backoff.min_s, found.backoff.max_s) == (0.5, 3.0)
