from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.topics import Topics


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path / "data")
