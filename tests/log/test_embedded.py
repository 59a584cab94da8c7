"""The embedded log keeps the contract, and what only it promises: files, recovery, re-packing."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from tests.log.contract import LogContract


class TestEmbeddedLog(LogContract):
    @pytest.fixture
    def log(self, tmp_path: Path) -> EmbeddedLog:  # type: ignore[override]
        return EmbeddedLog(tmp_path)
