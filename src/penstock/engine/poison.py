"""Messages on which the job of a batch fails: found, and left out, so that the rest of the batch goes through.

1. A job that raises is rolled back at its sinks and run again, JOB_TRIES times in all. What is not the messages'
   fault (`at_fault`) is raised: the query starts again, as if it had been killed. A worker of Spark's that dies may be.
2. The batch is halved and halved again, and each part tried without any sink, until the messages are alone that it
   fails on. That is log2 of the batch for each of them, twice at most. After POISONED_SINGLY of them what still fails is not
   searched: it fails as a whole, and its reason says so.
3. The batch runs without them, and their endings are part of its result, and of its decision.

Nothing is decided before, so a kill anywhere in between begins anew; once it is decided, the decision stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.errors import PySparkException

from penstock import logs
from penstock.flow.terms import Ended, Job, Result
from penstock.limits import JOB_TRIES, MAX_REASON_CHARS, POISONED_SINGLY
from penstock.sinks.blame import is_of_machines
from penstock.sinks.interface import Sink, Txn

log = logs.get("engine")


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Offsets of one partition, from `start` up to, not including, `end`."""

    topic: str
    partition: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"offsets {self.start} to {self.end - 1} of {self.topic}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Messages that end as failed, and why: one, or what was not searched."""

    span: Span
    error: AtFault
    whole: bool = False

    @property
    def reason(self) -> str:
        if not self.whole:
            return self.error.reason
        return (
            f"it came with a message on which the flow fails, one of {self.span}; not searched one by one after "
            f"{POISONED_SINGLY} others of the batch: {self.error.reason}"
        )


@dataclass(frozen=True, slots=True)
class AtFault:
    """What a message has brought about: in a line, and whether it was raised in Python, or the worker died of it."""

    reason: str
    python: bool = False
    crash: bool = False


Fails = Callable[[Sequence[Span]], AtFault | None]
"""Try these messages, and nothing else."""


def guarded(
    make: Callable[[Sequence[Span]], Job],
    spans: Sequence[Span],
    fails: Fails,
    ended: Callable[[Poisoned], Iterable[Ended]],
) -> Job:
    """The job of the batch `spans`. `make` gives the one that leaves some of it out."""
    current = make([])
    endings: list[Ended] = []

    def job(txn: Txn, targets: Mapping[str, Sink], *, rest: bool) -> Result:
        nonlocal current
        tries = 0
        while True:
            try:
                result = current(txn, targets, rest=rest)
            except Exception as error:
                found = at_fault(error)
                if found is None or rest or endings:
                    raise
                tries += 1
                log.warning("batch fails", txn=str(txn), attempt=tries, reason=found.reason)
                for sink in targets.values():
                    sink.abort(txn)
                if tries < JOB_TRIES:
                    continue
                poisoned = search(spans, found, fails)
                endings.extend(one for each in poisoned for one in ended(each))
                if not endings:  # together they fail, and apart they do not
                    raise
                log.error("messages end as failed, the batch goes on", messages=len(endings))
                current = make([one.span for one in poisoned])
            else:
                if not rest:
                    result.ended.extend(endings)
                return result

    return job


def search(spans: Sequence[Span], error: AtFault, fails: Fails) -> list[Poisoned]:
    """In the order of the batch. `error` is what the whole of it fails with."""
    found: list[Poisoned] = []
    waiting: list[tuple[Sequence[Span], AtFault | None]] = [(spans, error)]
    singles = 0
    while waiting:
        part, known = waiting.pop()
        count = _count(part)
        if known is None or count == 1:  # of one alone nothing is inferred
            known = fails(part)
        if known is None:
            continue
        if known.crash and count == 1:
            known = fails(part)  # once more: somebody else may have taken all the memory
            if known is None:
                continue
        if count == 1:
            found.append(Poisoned(part[0], known))
            singles += 1
        elif singles >= POISONED_SINGLY:
            known = fails(part)
            found += [] if known is None else [Poisoned(one, known, whole=True) for one in part]
        else:
            first, second = _halves(part)
            here = fails(first)
            # Where the first half is good, it must be the second.
            waiting.append((second, known if here is None else None))
            if here is not None:
                waiting.append((first, here))
    return found


def _count(part: Sequence[Span]) -> int:
    return sum(one.end - one.start for one in part)


def _halves(part: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    left = _count(part) // 2
    first: list[Span] = []
    second: list[Span] = []
    for one in part:
        cut = one.start + min(left, one.end - one.start)
        left -= cut - one.start
        if one.start < cut:
            first.append(Span(one.topic, one.partition, one.start, cut))
        if cut < one.end:
            second.append(Span(one.topic, one.partition, cut, one.end))
    return first, second


# --- Whose fault it is --------------------------------------------------------------------------

_CRASHED = "Python worker exited unexpectedly"
_CRASH = "a Python worker of Spark's dies over it each time: it crashes, or takes more memory than there is"
_PYTHON = "38000"
_OF_DATA = ("22", "P0001", "39000")
"""SQLSTATE of errors in data (a cast, an overflow, a division), of raise_error, and of functions."""


def at_fault(error: Exception) -> AtFault | None:
    """What a message has brought about; None if it was something else: an executor that was killed, no memory, a lost
    connection, or what nobody knows. A Python worker that died may have been killed; if it dies each time, over the
    same message alone, it was that."""
    if type(error).__name__ == "Py4JJavaError" and _CRASHED in str(error):
        return AtFault(_CRASH, python=True, crash=True)
    if not isinstance(error, PySparkException):
        return None
    state = error.getSqlState() or ""
    text = error.getMessage() or str(error)
    if state == _PYTHON:
        line = _raised(text)
        kind = line.partition(":")[0]
        return None if is_of_machines(kind) else AtFault(line[:MAX_REASON_CHARS], python=True)
    if state.startswith(_OF_DATA):
        line = text.split(" SQLSTATE:")[0].strip().split("\n")[0]
        return AtFault(line[:MAX_REASON_CHARS])
    return None


def _raised(text: str) -> str:
    """`TYPE: MESSAGE`, the first line behind the last traceback."""
    lines = text.rpartition("Traceback (most recent call last):")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), "an error in Python")
