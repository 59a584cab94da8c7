"""Two-phase commit under everything that goes wrong, for thousands of seeds. A seed replays its run."""

from __future__ import annotations

import os
import random

import pytest

from penstock.connector.deciding import Decision
from penstock.connector.ledger import Ledger
from tests.connector.model import BATCHES, Disk, simulate

SEEDS = 2000


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
    assert one.outcomes == two.outcomes
    assert one.chance.random() == two.chance.random()


def test_the_worlds_are_troubled_enough():
    """Some transaction is rolled back, some committed, some sink and some coordinator restarts."""
    outcomes: set[bool] = set()
    epochs = records = 0
    for seed in range(40):
        world = simulate(seed)
        outcomes |= set(world.outcomes.values())
        epochs = max(epochs, world.coordinator.epochs)
        records = max(records, len(world.coordinator.log))
    assert outcomes == {True, False}
    assert epochs > 2
    assert records == BATCHES


def test_the_model_would_notice_a_sink_that_forgets(monkeypatch):
    """A ledger that forgets its votes at a restart must be caught."""
    honest = Ledger.restore

    def forgetful(self: Ledger, committed: int, vote: object) -> None:
        honest(self, committed, None)

    monkeypatch.setattr(Ledger, "restore", forgetful)
    with pytest.raises(AssertionError):
        simulate_many(range(300))


def test_the_model_would_notice_a_sink_that_does_not_say_what_it_prepares(monkeypatch):
    monkeypatch.setattr(Disk, "stages", False)
    with pytest.raises(AssertionError, match="neither committed nor aborted"):
        simulate_many(range(300))


def test_the_model_would_notice_a_coordinator_that_does_not_wait(monkeypatch):
    monkeypatch.setattr(Decision, "lost", lambda self, who: self._waiting.discard(who))
    with pytest.raises(AssertionError):
        simulate_many(range(300))
