"""The fault drill: kill any process at any step; every message ends in every sink once, in order.

Three transactional sinks (a file that grows, files, a topic), numbered senders that repeat what was not
answered. Some messages are for one sink only, and some for none. Chance has a seed that replays it:
PENSTOCK_SEED=… pytest tests/engine/test_drill.py
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.engine.drilling import Drill, Victim, chance
from tests.engine.flows import THREE_SINKS
from tests.supervisor.running import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

IN_A_WORKER = ("staging.synced", "staging.prepared")
"""One of Spark's Python workers, while it prepares."""
STEPS = (
    ("transaction.settled", "transaction.prepared"),
    ("staging.synced", "transaction.decided"),
    ("staging.prepared", "transaction.committing"),
    ("topic.appended", "transaction.committed"),
    ("transaction.recorded", "engine.returning"),
)
"""Between any two of the numbered steps, and in the middle of those that reach sinks: in pairs, of which a batch that
comes to the first comes to the second. Points that Spark has no part in, as that between writing a decision and
its sync, are in tests/flow/test_transaction.py."""


def kill_at(drill: Drill, step: str, *victims: Victim) -> None:
    """Each in a batch of its own, which stands still there; then it goes on, as far as it still can."""
    for victim in victims:
        restarts = drill.restarts
        with drill.at(step) as waiting:
            left = drill.processes()
            drill.kill(victim, waiting if step in IN_A_WORKER else None)
        if victim == "worker":
            assert drill.restarts == restarts, "it is Spark that runs its task again"
        if victim == "supervisor":
            # The engine goes on with its batch by itself, and ends behind it.
            drill.start_again(left)


def kill_both_at(drill: Drill, step: str, later: str) -> None:
    """The supervisor, and then, in the same batch, the engine that it has left."""
    with ExitStack() as until_it_is_dead:
        with drill.at(step):
            left = drill.processes()
            engine = drill.run.pid("engine")
            drill.kill("supervisor")
            come = until_it_is_dead.enter_context(drill.shut(later))
        come()
        os.kill(engine, signal.SIGKILL)
    drill.start_again(left)


def test_each_process_is_killed_at_every_step(tmp_path: Path) -> None:
    points: list[tuple[str, dict[str, str]]] = [(step, {}) for pair in STEPS for step in pair]
    with Drill(tmp_path, THREE_SINKS, chance(), points) as drill:
        for step, later in STEPS:
            kill_at(drill, step, "edge-0", "worker", "engine")
            kill_at(drill, later, "edge-0", "worker", "supervisor")
            # Each death of these two costs a start of Spark: here one start does for both.
            kill_both_at(drill, step, later)


def test_any_process_is_killed_at_any_moment(tmp_path: Path) -> None:
    dice = chance()
    kinds: tuple[Victim, ...] = ("edge-0", "worker", "engine", "supervisor")
    with Drill(tmp_path, THREE_SINKS, dice) as drill:
        for victim in dice.choices(kinds, (3, 3, 2, 1), k=6):
            # A process that is only starting has nothing to lose.
            drill.wait_for_a_batch()
            time.sleep(dice.uniform(0.0, 0.5))
            drill.kill_and_recover(victim)


def test_a_process_is_killed_while_a_sink_is_held_and_while_it_drains(tmp_path: Path) -> None:
    dice = chance()
    step = dice.choice(["settled", "prepared", "decided", "committed", "recorded"])
    point = f"transaction.{step}"
    kinds: tuple[Victim, ...] = ("edge-0", "worker", "engine", "supervisor")
    with Drill(tmp_path, THREE_SINKS, dice, [(point, {"of": "drill.web.drain.lines"})]) as drill:
        drill.wait_for_a_batch()
        drill.take_away()
        eventually(drill.receipts.parked, "a message waits for the sink")
        drill.wait_for_a_batch()
        time.sleep(dice.uniform(0.0, 0.5))
        drill.kill_and_recover(dice.choice(kinds))
        drill.wait_for_a_batch()
        with drill.shut(point) as come:
            drill.bring_back()
            come()
            left = drill.processes()
            victim = dice.choice(kinds)
            drill.kill(victim)
        if victim == "supervisor":
            drill.start_again(left)


def test_with_commit_atomic_it_is_all_or_nothing_whatever_is_killed(tmp_path: Path) -> None:
    dice = chance()
    before, after = "transaction.prepared", "topic.appended"
    text = THREE_SINKS.replace("name: drill\n", "name: drill\ncommit: atomic\n")
    with Drill(tmp_path, text, dice, [(before, {}), (after, {})]) as drill:
        kill_at(drill, before, "edge-0", "worker", "engine")
        kill_at(drill, after, "supervisor")
        drill.wait_for_a_batch()
        drill.take_away()
        eventually(lambda: "batch waits" in drill.run.log(), "a sink votes against")
        drill.kill("engine")
        drill.bring_back()
