"""Fault points: places where a test can make a process die, fail or wait.

A point costs one look at a dictionary that is empty unless `PENSTOCK_FAULTS` is set. The variable holds
JSON, a list of rules; each names a point and says what happens there, and when:

    [{"point": "transaction.decided", "action": "kill", "after": 3}]

`action` is `kill` (SIGKILL to this very process), `raise` (`Fault`) or `sleep` (`seconds`). `after` lets that many passes go by first; `times` ends the
rule after so many. `once` names a file that is made when the rule strikes: it strikes no more while the file
exists, so that a process that was killed is not killed again when it comes back. `match` maps names of
the point's values to the values that they must have.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any

import orjson

from penstock.errors import ConfigError, PenstockError

VARIABLE = "PENSTOCK_FAULTS"


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
    match: dict[str, Any] = field(default_factory=dict)
    passed: int = 0
    struck: int = 0

    def strikes(self, values: dict[str, Any]) -> bool:
        if any(str(values.get(name)) != str(value) for name, value in self.match.items()):
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
    else:
        raise Fault(f"fault at {name}")


def arm(*rules: Rule) -> None:
    """For tests in this process: these rules and no others from now on. No rules: none."""
    _rules.clear()
    for rule in rules:
        _rules.setdefault(rule.point, []).append(rule)
