"""Two-phase commit under everything that goes wrong, for thousands of seeds. A seed replays its run."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from penstock.connector.ledger import Ledger, Voted
from penstock.connector.two_phase import Phase1
from penstock.flow import transaction
from penstock.sinks.connector_workers import Round, Worker
from tests.connector.model import simulate
from tests.connector.model_parts import Disk

SEEDS = 3000
ENOUGH = 300
"""Worlds in which a mistake that was put in must show."""


def simulate_many(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.slow
def test_never_a_lost_or_doubled_byte_nor_a_commit_after_a_vote_against_and_always_settled():
    one = os.environ.get("PENSTOCK_TEST_SEED")
    first = random.randrange(1 << 32) if one is None else int(one)
    wanted = SEEDS if one is None else 1
    ran = 0
    for seed in range(first, first + wanted):
        try:
            simulate(seed)
        except BaseException:
            print(f"replay with PENSTOCK_TEST_SEED={seed}")
            raise
        ran += 1
    assert ran == wanted


@pytest.mark.parametrize("seed", range(40))
def test_a_few_worlds_come_to_rest(seed):
    simulate(seed)


def test_a_seed_replays_its_run():
    one, two = simulate(7), simulate(7)
    assert (one.seen, one.steps) == (two.seen, two.steps)
    assert one.chance.random() == two.chance.random()


def test_the_worlds_are_troubled_enough():
    """Rounds are committed and rolled back, engines die, workers leave, and tasks go on when nobody waits for them."""
    seen: Counter[str] = Counter()
    for seed in range(100):
        seen.update(simulate(seed).seen)
    assert seen["lives"] > 110
    assert min(seen["committed"], seen["rolled back"], seen["strays"], seen["wrong"]) > 20
    assert seen["left"] > 0


def test_the_model_would_notice_a_sink_that_forgets(monkeypatch):
    """A ledger that forgets its votes at a restart must be caught."""
    honest = Ledger.restore

    def forgetful(self: Ledger, committed: int, vote: object) -> None:
        honest(self, committed, None)

    monkeypatch.setattr(Ledger, "restore", forgetful)
    with pytest.raises(AssertionError):
        simulate_many(range(ENOUGH))


def test_the_model_would_notice_a_sink_that_does_not_say_what_it_prepares(monkeypatch):
    monkeypatch.setattr(Disk, "stages", False)
    with pytest.raises(AssertionError, match="neither committed nor aborted"):
        simulate_many(range(ENOUGH))


def test_the_model_would_notice_a_sink_that_takes_a_wrong_range_for_its_offset(monkeypatch):
    honest = Ledger.phase1

    def careless(self: Ledger, message: Phase1) -> Voted:
        self.committed = message.ranges[0].start
        return honest(self, message)

    monkeypatch.setattr(Ledger, "phase1", careless)
    with pytest.raises(AssertionError):
        simulate_many(range(ENOUGH))


def test_the_model_would_notice_a_flow_that_does_not_listen_to_votes(monkeypatch):
    monkeypatch.setattr(transaction, "_refusals", lambda votes: {})
    with pytest.raises(AssertionError):
        simulate_many(range(ENOUGH))


def test_the_model_would_notice_a_worker_that_does_not_write_down_its_round(monkeypatch):
    def careless(self: Worker, transaction: str, start: int, end: int) -> None:
        self.known = replace(self.known, committed=start, round=Round(transaction, start, end))

    monkeypatch.setattr(Worker, "begin", careless)
    with pytest.raises(AssertionError):
        simulate_many(range(ENOUGH))


def test_the_model_would_notice_a_worker_whose_next_attempt_takes_its_stream(monkeypatch):
    """Lane 0, whoever waits there for a decision."""
    honest = Worker.__init__

    def careless(self: Worker, *given: object) -> None:
        honest(self, *given)  # type: ignore[arg-type]
        self.known = replace(self.known, round=None)

    monkeypatch.setattr(Worker, "__init__", careless)
    with pytest.raises(AssertionError):
        simulate_many(range(ENOUGH))
