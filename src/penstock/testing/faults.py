"""Faults for tests of flows: a component that fails, times out, is slow, or crashes.

    runner.run(flow, inputs, faults=[faults.fail("warehouse", times=2), faults.crash("warehouse")])

What a fault does depends on where it stands:

- At a **sink**, `fail` and `time_out` mean that the destination is gone: the sink is held back, what is meant
  for it waits in its park, and it gets it when it is back. `times` counts attempts. With a `match` the sink is
  there, and refuses the messages that match: they end as failed.
- At a **link or receiver**, messages end there as failed, or timed_out. `times` counts messages.

The mistake to avoid: a fault without `times` strikes for ever, so the statuses of what waits for a
sink stay `new` (or become `timed_out`, if a copy above the sink has a `timeout_s`). That is no error of the flow.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Step = Literal["task", "settled", "prepared", "decided", "committing", "committed", "recorded"]
"""Where a crash can be: in a task on Spark, or at a step of the transaction (`penstock.flow.transaction`)."""

Kind = Literal["fail", "time_out", "slow", "crash"]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Match:
    """Which messages a fault is for: those for which all that is given holds."""

    contains: bytes | None = None
    """A part of the payload."""

    meta: Mapping[str, str] = field(default_factory=dict)
    key: bytes | None = None
    stream: str | None = None

    def of(self, events: pa.RecordBatch) -> Mask:
        rows = zip(
            *(events.column(name).to_pylist() for name in ("payload", "meta", "key", "stream")),
            strict=True,
        )
        return np.array([self._fits(*row) for row in rows], np.bool_)

    def _fits(
        self, payload: bytes, meta: list[tuple[str, str]], key: bytes | None, stream: str
    ) -> bool:
        return (
            (self.contains is None or self.contains in payload)
            and self.meta.items() <= dict(meta).items()
            and self.key in (None, key)
            and self.stream in (None, stream)
        )


@dataclass(frozen=True, slots=True)
class Fault:
    """Made by the functions of this module."""

    at: str
    kind: Kind
    times: int | None = None
    match: Match | None = None
    reason: str = ""
    seconds: float = 0.0
    step: Step = "task"

    def __post_init__(self) -> None:
        if self.times is not None and self.times < 1:
            raise ValueError(f"a fault strikes at least once: times={self.times}")
        if self.step not in get_args(Step):
            steps = ", ".join(get_args(Step))
            raise ValueError(f"there is no step {self.step!r}; there are {steps}")

    @property
    def kills_engine(self) -> bool:
        """Whether the flow must run in a process of its own."""
        return self.kind == "crash" and self.step != "task"

    @property
    def said(self) -> str:
        """The reason in a receipt."""
        usual = "no answer in time" if self.kind == "time_out" else "made to fail"
        return f"{self.at}: {self.reason or usual} (a fault of the test)"


def fail(
    at: str, *, times: int | None = None, match: Match | None = None, reason: str = ""
) -> Fault:
    """The component fails: for ever, so many times, or for the messages that match."""
    return Fault(at, "fail", times, match, reason)


def time_out(at: str, *, times: int | None = None, match: Match | None = None) -> Fault:
    """The component does not answer in time. Nothing waits for it: the time passes at once."""
    return Fault(at, "time_out", times, match)


def slow(at: str, seconds: float, *, times: int | None = None) -> Fault:
    """The component takes so much longer over a batch. This waits in earnest; keep it short."""
    return Fault(at, "slow", times, seconds=seconds)


def crash(at: str, step: Step = "decided", *, times: int = 1) -> Fault:
    """A process is killed, by SIGKILL, while the component's messages are in work, and comes back.

    At the step `task` it is one of Spark's Python workers. At the steps of the transaction it is the engine, with its
    driver: the flow then runs in a process of its own, and Spark starts once more for each crash.
    `committing` is when the decision is logged and this very sink is about to commit.
    """
    return Fault(at, "crash", times, step=step)


@dataclass(frozen=True, slots=True)
class Tickets:
    """Lets a fault strike so many times, whichever of Spark's workers meets it.

    Who has a ticket keeps it: work that is done again meets the same faults again.
    """

    path: Path
    limit: int | None

    def take(self, names: Sequence[str]) -> Mask:
        """Which of these have a ticket now."""
        if self.limit is None:
            return np.ones(len(names), np.bool_)
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            held = dict.fromkeys(os.pread(fd, os.fstat(fd).st_size, 0).decode().splitlines())
            new = [name for name in dict.fromkeys(names) if name not in held]
            given = new[: max(0, self.limit - len(held))]
            if given:
                os.lseek(fd, 0, os.SEEK_END)
                os.write(fd, "".join(f"{name}\n" for name in given).encode())
            held |= dict.fromkeys(given)
        finally:
            os.close(fd)
        return np.array([name in held for name in names], np.bool_)


def places(events: pa.RecordBatch) -> list[str]:
    """Names for events that stay the same when they come again."""
    columns = (events.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return ["/".join(map(str, place)) for place in zip(*columns, strict=True)]
