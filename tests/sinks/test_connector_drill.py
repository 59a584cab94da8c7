"""`sink.connector` with everything killed and cut: what the program has committed is what was sent."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tools.services import free_port

from .connector_drill import TASKS, drill, payloads, visible

BATCHES = 25
TROUBLES = 10


@pytest.mark.slow
def test_the_program_has_everything_once_whatever_is_killed_or_cut(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED") or random.randrange(1 << 32))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    troubles = drill(tmp_path, (free_port(), free_port()), seed, BATCHES, TROUBLES)
    expected = [
        payload
        for batch in range(BATCHES)
        for partition in range(TASKS)
        for payload in payloads(batch, partition)
    ]
    assert visible(tmp_path / "program") == expected
    assert not list((tmp_path / "program").glob("*.staged"))
    assert troubles > 5
