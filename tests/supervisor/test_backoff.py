"""Pauses between restarts."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.limits import RESTART_HEALTHY_S, RESTART_MAX_S, RESTART_MIN_S
from penstock.supervisor.backoff import Backoff


@given(st.integers(0, 2**32), st.lists(st.floats(0, 200), max_size=60))
def test_every_pause_is_within_bounds(seed: int, lives: list[float]) -> None:
    backoff = Backoff(random.Random(seed))
    for healthy_s in lives:
        assert RESTART_MIN_S <= backoff.next_delay_s(healthy_s) <= RESTART_MAX_S


def test_pauses_grow_while_nothing_gets_better() -> None:
    backoff = Backoff(random.Random(1))
    delays = [backoff.next_delay_s(0) for _ in range(12)]
    assert delays[0] == RESTART_MIN_S
    assert min(delays[8:]) >= RESTART_MAX_S / 2


def test_a_minute_of_health_starts_over() -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(10):
        backoff.next_delay_s(0)
    assert backoff.next_delay_s(RESTART_HEALTHY_S) == RESTART_MIN_S


def test_pauses_of_two_processes_differ() -> None:
    one, two = Backoff(random.Random(1)), Backoff(random.Random(2))
    first = [one.next_delay_s(0) for _ in range(8)]
    second = [two.next_delay_s(0) for _ in range(8)]
    assert first[4:] != second[4:]
