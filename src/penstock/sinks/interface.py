"""What a sink promises to the coordinator of a flow. `tests/sinks/contract.py` holds sinks to it.

A micro-batch is one transaction. Its two phases happen in different places:

1. In every task of the batch: `Sink.task(...)`, then `write` for each Arrow batch, then `prepare`: what
   was written is durable at the destination, and nobody there sees it yet. The answer holds a *token*: a
   few bytes that say what was prepared.
2. In the driver, once the decision is logged: `commit` with the tokens of the attempts that won, or `abort`.
   An empty token says that the attempt prepared nothing; it may be given to `commit` or left out.

Promised by a sink whose guarantee is exactly once:

- Nothing is visible before `commit`, and everything is after it, once, whatever is killed at whatever moment.
- `commit` and `abort` are idempotent, and may be asked for again after a crash by a process that knows
  nothing but the transaction and the tokens.
- Two attempts of one task may both prepare. Only the tokens given to `commit` count; the rest is litter,
  which `commit` and `abort` of that transaction remove.
- `uncommitted` names every transaction with something prepared that was neither committed nor aborted.

A sink that cannot prepare (UDP, plain TCP, HTTP) sends in `prepare` (or before, if a task has more to
send than may be kept), commits nothing, and says so by its guarantee.

Order: a task is given the events of a stream in order, and its destination gets them in that order.
`commit` applies tokens in the order of their tasks' partitions, in whatever order they are given. Not
promised: order between streams, or between the tasks of one transaction.

`penstock.sinks.task.run_task` is the caller of the first phase, the coordinator that of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.guarantee import Guarantee

EVENTS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("peer", pa.string()),
        pa.field("stream", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("key", pa.binary()),
        pa.field("meta", pa.map_(pa.string(), pa.string())),
        pa.field("payload", pa.binary()),
    ]
)
"""The columns of every batch that a sink is given. Position and id are those of the origin."""


class SinkUnavailable(PenstockError):
    """The destination cannot be reached, or takes nothing now. It may later."""


class SinkRefuses(SinkUnavailable):
    """The destination answers, and takes none of what it was given. It may be about one message: who asks in vain
    again and again looks for that (`penstock.flow.refusals`)."""


class Poisoned(PenstockError):
    """Some events can never be taken. Nothing of the batch given to `write` was.

    `rows` says which, by their index in that batch, and why. Empty: one of them, the sink cannot tell
    which; the caller then looks for it by halves.
    """

    def __init__(self, reason: str, rows: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.rows = dict(rows or {})


@dataclass(frozen=True, slots=True)
class Txn:
    """Names a transaction for ever. Numbers of one coordinator rise, with gaps."""

    coordinator: str
    number: int

    def __str__(self) -> str:
        return f"{self.coordinator}/{self.number}"

    @classmethod
    def parse(cls, text: str) -> Txn:
        coordinator, _, number = text.rpartition("/")
        return cls(coordinator, int(number))


@dataclass(frozen=True, slots=True)
class Refused:
    """Events that the destination was sent and will never take, with a reason for each."""

    events: pa.RecordBatch
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of an attempt: the token for `commit`, and what the destination refused.

    Only sinks that send in `prepare` learn of a refusal so late; the others raise Poisoned in `write`.
    """

    token: bytes = b""
    refused: tuple[Refused, ...] = ()


class SinkTask(Protocol):
    """One attempt of one task at one transaction. Used by one thread, then thrown away."""

    def write(self, events: pa.RecordBatch) -> None:
        """Take a batch of `EVENTS`, all of it or (raising Poisoned) nothing.

        Raises SinkUnavailable if the destination is gone; the task is then aborted.
        """

    def prepare(self) -> Prepared:
        """Make what was written durable, not visible. Called once, last. Raises SinkUnavailable."""

    def abort(self) -> None:
        """Forget what this attempt has written. Never raises; called at most once, not after `prepare`
        has returned."""


class Sink(Protocol):
    """The driver's side. Picklable: it holds configuration, never a connection.

    Connections that are worth keeping between batches belong to the process (see `close`).
    """

    @property
    def name(self) -> str:
        """The component's name."""

    @property
    def guarantee(self) -> Guarantee: ...

    def task(self, txn: Txn, partition: int, attempt: int) -> SinkTask:
        """In a task: begin. `partition` is the task's, `attempt` rises with every try of it.

        A process that died may have used the same three before; nothing may depend on their being new.
        """

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        """Make what the tokens name visible. SinkUnavailable: ask again later, with the same tokens.

        Of one coordinator, transactions are committed in the order of their numbers.
        """

    def abort(self, txn: Txn) -> None:
        """Remove whatever was prepared for the transaction, by any attempt."""

    def uncommitted(self, coordinator: str) -> list[Txn]:
        """Transactions of this coordinator with something prepared, in order."""

    def probe(self) -> None:
        """Raises SinkUnavailable if there is no point in trying."""

    def close(self) -> None:
        """The driver has no more use for it."""
