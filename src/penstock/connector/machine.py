"""Runs one of the tables of states.py."""

from __future__ import annotations

from penstock.connector.states import OVER, Side, Signal, State, Table
from penstock.errors import ProtocolError


class Machine:
    """A state, and the only way to change it. `what` names the machine in errors."""

    __slots__ = ("_table", "_what", "state")

    def __init__(self, table: Table, what: str) -> None:
        self._table = table
        self._what = what
        self.state: State = next(iter(table))

    @property
    def over(self) -> bool:
        return self.state in OVER

    def allows(self, side: Side, signal: Signal) -> bool:
        return (side, signal) in self._table[self.state]

    def step(self, side: Side, signal: Signal) -> State:
        """Raises ProtocolError, and stays where it is, if the table has no such row."""
        following = self._table[self.state].get((side, signal))
        if following is None:
            raise ProtocolError(
                f"{signal} from the {side} is not allowed while {self._what} is {self.state!s}"
            )
        self.state = following
        return following
