"""Running the cases of files, one after the other, on one Spark."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock import logs
from penstock.testing.comparing import Difference, differences
from penstock.testing.reading import Case, Suite
from penstock.testing.runner import FlowRunner


@dataclass(frozen=True, slots=True)
class CaseResult:
    """`failed`: it came out otherwise than expected. `error`: it could not be run."""

    file: Path
    case: Case
    status: Literal["passed", "failed", "error"]
    seconds: float
    differences: list[Difference] = field(default_factory=list)
    error: str | None = None

    @property
    def where(self) -> str:
        return f"{self.file}:{self.case.line}"

    def report(self) -> str:
        """What is wrong, readable, one line or more a difference."""
        if self.error is not None:
            return self.error
        lines = []
        for one in self.differences:
            lines += [one.where, f"  expected  {one.expected}", f"  got       {one.got}"]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "file": str(self.file),
            "line": self.case.line,
            "case": self.case.name,
            "status": self.status,
            "seconds": round(self.seconds, 3),
        }
        if self.differences:
            told["differences"] = [one.to_json() for one in self.differences]
        return {**told, "error": self.error} if self.error is not None else told


def run_case(runner: FlowRunner, suite: Suite, case: Case) -> CaseResult:
    """Never raises: what goes wrong is the result."""
    started = time.monotonic()
    options = case.options
    try:
        outcome = runner.run(
            suite.flow,
            case.inputs,
            faults=options.all_faults(),
            real=options.real,
            clock=options.clock.clock(),
            then_s=options.clock.then,
            timeout_s=options.timeout_s,
        )
        found = differences(options, outcome)
    except Exception as error:  # of the flow's own functions, too
        took_s = time.monotonic() - started
        return CaseResult(suite.file, case, "error", took_s, error=logs.describe(error))
    status: Literal["passed", "failed"] = "failed" if found else "passed"
    return CaseResult(suite.file, case, status, time.monotonic() - started, found)
