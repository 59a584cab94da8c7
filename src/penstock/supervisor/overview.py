"""What the supervisor lets others see of a running flow: the admin API reads nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.flow.receipt import Receipt
from penstock.message import EventId
from penstock.supervisor.child import ChildState
from penstock.supervisor.totals import Snapshot


@dataclass(frozen=True, slots=True)
class ProcessView:
    name: str
    state: ChildState
    pid: int | None
    restarts: int
    since: float  # when it came into its state, seconds since 1970
    last_error: str | None  # why it last died

    @property
    def up(self) -> bool:
        return self.state is ChildState.READY


class Overview(Protocol):
    @property
    def flow(self) -> str: ...

    def not_ready(self) -> str | None:
        """Why the flow does not take traffic now, or None if it does."""

    def processes(self) -> list[ProcessView]: ...

    def find_receipt(self, event: EventId, at: tuple[int, int] | None) -> Receipt:
        """What became of a message. `at`: its partition and offset, if they are known. Blocks;
        UnknownMessage says why there is no receipt."""

    async def collect(self) -> Snapshot:
        """Ask the edge processes for their counters; for the silent, the last known ones count."""
