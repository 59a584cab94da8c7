"""Faults by rule, for tests of whatever talks to a sink: what a bad day looks like, on demand.

    sink = TwoPhaseSink(folder, faults=[Fault("vote_no", content=b"poison"), Fault("close_after", skip=3)])

A rule is asked for every round that the sink would vote to commit. It strikes if all that it names is so:
`transaction` is part of the transaction's id, `content` is part of some payload of the round, and
`skip` rounds that it would have struck have gone by. After `times` strikes it rests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from penstock.sdk.rounds import Round

Action = Literal["vote_no", "close_before", "close_after"]


@dataclass(slots=True)
class Fault:
    """One rule.

    `vote_no` votes to roll back. `close_before` logs the vote and closes the connection instead of answering;
    `close_after` closes it right behind the answer.
    """

    action: Action
    transaction: str = ""
    content: bytes = b""
    skip: int = 0
    times: int | None = 1
    matched: int = 0
    struck: int = 0

    def strikes(self, round_: Round) -> bool:
        if self.times is not None and self.struck >= self.times:
            return False
        if self.transaction not in round_.transaction.id:
            return False
        if self.content and not any(self.content in payload for payload in round_.payloads()):
            return False
        self.matched += 1
        if self.matched <= self.skip:
            return False
        self.struck += 1
        return True


class FaultRules:
    """The rules of one sink, asked by all of its connections."""

    def __init__(self, rules: Iterable[Fault] = ()) -> None:
        self._rules = list(rules)
        self._lock = threading.Lock()

    def action(self, round_: Round) -> Action | None:
        """What goes wrong with this round, by the first rule that strikes."""
        with self._lock:
            for rule in self._rules:
                if rule.strikes(round_):
                    return rule.action
        return None
