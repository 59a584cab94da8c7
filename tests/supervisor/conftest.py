from __future__ import annotations

from pathlib import Path

import pytest

from tests.supervisor.running import ONE_RECEIVER


@pytest.fixture
def flow(tmp_path: Path) -> Path:
    """A flow with one HTTP receiver, on any free port."""
    file = tmp_path / "orders.yaml"
    file.write_text(ONE_RECEIVER)
    return file
