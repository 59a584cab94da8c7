"""What one run of the benchmarks shares: its settings, and the rows and raw numbers it gathers."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from bench import machine
from bench.machine import Cores

Verdict = Literal["met", "MISSED", "MISSING", "-"]
T = TypeVar("T")


@dataclass(slots=True)
class Row:
    """One line of the table: the rounds of one number, and its goal if it has one."""

    name: str
    unit: str
    rounds: list[float]
    goal: float | None = None
    at_most: bool = False  # the goal is an upper bound
    worst: bool = False  # the worst round counts, not the median
    note: str = ""
    missing: str = ""  # why it could not be measured

    @property
    def value(self) -> float:
        if not self.rounds:
            return math.nan
        if self.worst:
            return max(self.rounds) if self.at_most else min(self.rounds)
        return statistics.median(self.rounds)

    @property
    def verdict(self) -> Verdict:
        if self.missing or not self.rounds:
            return "MISSING"
        if self.goal is None:
            return "-"
        met = self.value <= self.goal if self.at_most else self.value >= self.goal
        return "met" if met else "MISSED"

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "value": None if math.isnan(self.value) else self.value,
            "rounds": self.rounds,
            "goal": self.goal,
            "goal_is": "at most" if self.at_most else "at least",
            "counts": "worst round" if self.worst else "median of rounds",
            "verdict": self.verdict,
            "note": self.note,
            "missing": self.missing,
        }


@dataclass(slots=True)
class Suite:
    """Settings of the run and everything measured so far."""

    rounds: int
    quick: bool
    folder: Path
    cores: Cores
    growth_max: int
    outage_s: float
    rows: list[Row] = field(default_factory=list)
    raw: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    memory: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows.append(row)

    def keep(self, benchmark: str, sample: dict[str, Any]) -> None:
        """A raw sample, for the JSON file."""
        self.raw.setdefault(benchmark, []).append(sample)

    def saw_memory(self, benchmark: str, seen: dict[str, float]) -> None:
        """Peak memory of Penstock's own processes, the highest of all rounds."""
        peaks = self.memory.setdefault(benchmark, {})
        for name, value in seen.items():
            peaks[name] = max(value, peaks.get(name, 0.0))

    def each_round(self, benchmark: str, contenders: Sequence[T]) -> Iterator[tuple[int, list[T]]]:
        """Rounds with the order turned by one each time, so that none is always first."""
        for number in range(self.rounds):
            noise = machine.probe(self.folder, self.cores)
            self.keep(benchmark, {"round": number, "probe": noise})
            print(f"  {benchmark}: round {number + 1} of {self.rounds}", flush=True)
            turn = number % len(contenders)
            yield number, [*contenders[turn:], *contenders[:turn]]

    def noise(self) -> dict[str, tuple[float, float]]:
        """The lowest and the highest of each probe, over all rounds."""
        seen: dict[str, list[float]] = {}
        for samples in self.raw.values():
            for sample in samples:
                for name, value in sample.get("probe", {}).items():
                    seen.setdefault(name, []).append(value)
        return {name: (min(values), max(values)) for name, values in seen.items()}

    def scratch(self, name: str) -> Path:
        """An empty folder for one benchmark; `clear` removes it."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True)
        return path

    def clear(self, name: str) -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
