"""The sink that the guide shows keeps the contract."""

from __future__ import annotations

import importlib.util
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from penstock.sinks.interface import Sink

from .contract import ExactlyOnceContract

EXAMPLE = Path(__file__).parents[2] / "examples" / "sqlite_sink.py"


def load() -> ModuleType:
    name = EXAMPLE.stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, EXAMPLE)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


class TestSqlite(ExactlyOnceContract):
    prepare_points: ClassVar[list[str]] = []
    commit_points: ClassVar[list[str]] = []

    @pytest.fixture
    def sink(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sink:
        monkeypatch.setenv("PYTHONPATH", str(EXAMPLE.parent), prepend=":")  # for new processes
        sink: Sink = load().SqliteSink("table", str(tmp_path / "events.db"))
        return sink

    def rows(self, sink: Any, table: str) -> list[Any]:
        with closing(sqlite3.connect(sink.path)) as database:
            known = database.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,))
            if known.fetchone() is None:
                return []
            return database.execute(f"SELECT payload FROM {table} ORDER BY rowid").fetchall()

    def seen(self, sink: Sink) -> list[bytes]:
        return [payload for (payload,) in self.rows(sink, "events")]

    def litter(self, sink: Sink) -> list[str]:
        return [str(row) for row in self.rows(sink, "staged")]
