"""Fault points: places where a test can make a process die, fail or wait.

A point costs one look at a dictionary that is empty unless `PENSTOCK_FAULTS` is set. The variable holds
JSON, a list of rules; each names a point and says what happens there, and when:

    [{"point": "transaction.decided", "action": "kill", "after": 3}]

`action` is `kill` (SIGKILL to this very process), `raise` (`Fault`), `sleep` (`seconds`) or `pause`. `after` lets
that many passes go by first; `times` ends the rule after so many. `once` names a file that is made when the rule
strikes: it strikes no more while the file exists, so that a process that was killed is not killed again when it
comes back. `match` maps names of the point's values to the values that they must have.

`pause` strikes while the file `gate` is there, and waits until it is gone or says something else. Whoever waits has
written the number of its process beside it (`waiting_at`): so a test stops a flow wherever it likes, as often as
it likes, and kills whom it likes meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from penstock.errors import ConfigError, PenstockError

VARIABLE = "PENSTOCK_FAULTS"
_LOOK_S = 0.01


class Fault(PenstockError):
    """Raised at a fault point, by a test's wish."""


@dataclass(slots=True)
class Rule:
    point: str
    action: str = "raise"
    after: int = 0
    times: int | None = None
    once: str | None = None
    seconds: float = 0.0
    gate: str | None = None
    match: dict[str, Any] = field(default_factory=dict)
    passed: int = 0
    struck: int = 0

    def __post_init__(self) -> None:
        if self.action == "pause" and self.gate is None:
            raise ValueError("pause needs a gate")

    def strikes(self, values: dict[str, Any]) -> bool:
        if any(str(values.get(name)) != str(value) for name, value in self.match.items()):
            return False
        if self.gate is not None and not os.path.exists(self.gate):
            return False
        self.passed += 1
        if self.passed <= self.after or (self.times is not None and self.struck >= self.times):
            return False
        if self.once is not None:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                return False
        self.struck += 1
        return True


def _load(text: str | None) -> dict[str, list[Rule]]:
    rules: dict[str, list[Rule]] = {}
    try:
        for entry in orjson.loads(text or "[]"):
            rule = Rule(**entry)
            rules.setdefault(rule.point, []).append(rule)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{VARIABLE} is not a list of rules: {error}") from None
    return rules


_rules = _load(os.environ.get(VARIABLE))


def point(name: str, **values: Any) -> None:
    """Something may happen here, if a test has asked for it."""
    if not _rules:
        return
    for rule in _rules.get(name, ()):
        if rule.strikes(values):
            _act(rule, name)


def _act(rule: Rule, name: str) -> None:
    if rule.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif rule.action == "sleep":
        time.sleep(rule.seconds)
    elif rule.action == "pause":
        assert rule.gate is not None
        _wait(Path(rule.gate))
    else:
        raise Fault(f"fault at {name}")


def waiting_at(gate: Path) -> Path:
    """The file that says which process waits at the gate."""
    return gate.with_name(f"{gate.name}.at")


def _wait(gate: Path) -> None:
    # It may be shut again before this process has seen it open: then it is another gate.
    shut = _read(gate)
    # Renamed, so that it is never seen without its content.
    mine = gate.with_name(f"{gate.name}.{os.getpid()}")
    mine.write_text(str(os.getpid()))
    mine.rename(waiting_at(gate))
    while shut is not None and _read(gate) == shut:
        time.sleep(_LOOK_S)


def _read(gate: Path) -> str | None:
    try:
        return gate.read_text()
    except FileNotFoundError:
        return None


def arm(*rules: Rule) -> None:
    """For tests in this process: these rules and no others from now on. No rules: none."""
    _rules.clear()
    for rule in rules:
        _rules.setdefault(rule.point, []).append(rule)
