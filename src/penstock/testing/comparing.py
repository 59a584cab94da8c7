"""What came of a case beside what was expected: differences, in words for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.flow.receipt import Branch, Receipt
from penstock.status import Status
from penstock.testing.cases import (
    BranchOptions,
    CaseOptions,
    MessageOptions,
    SinkOptions,
    StatusesOptions,
    StatusOptions,
)
from penstock.testing.messages import Outcome, Output

_MAX_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as expected. `where` is a place like `box_a[2]`."""

    where: str
    expected: str
    got: str

    def to_json(self) -> dict[str, str]:
        return {"where": self.where, "expected": self.expected, "got": self.got}


def differences(case: CaseOptions, outcome: Outcome) -> list[Difference]:
    """Empty: the case passes."""
    found: list[Difference] = []
    if outcome.failure is not None and not _said_so(case, outcome):
        found.append(Difference("the flow", "everything settled", outcome.failure))
    for sink, expected in case.expect.items():
        found += _sink(sink, expected, outcome.outputs.get(sink, ()))
    for receiver, statuses in case.statuses.items():
        found += _statuses(receiver, statuses, outcome.receipts.get(receiver, ()))
    return found


def _said_so(case: CaseOptions, outcome: Outcome) -> bool:
    """Whether the case expects that something is still under way when its time is up."""
    wanted = [
        one for given in case.statuses.values() for one in [*(given.each or []), given.all] if one
    ]
    return any(one.wanted is Status.NEW for one in wanted)


# --- Sinks --------------------------------------------------------------------------------------


def _sink(sink: str, expected: SinkOptions, got: Sequence[Output]) -> list[Difference]:
    found = []
    if expected.count is not None and expected.count != len(got):
        found.append(Difference(sink, _messages(expected.count), _messages(len(got))))
    if expected.messages is None:
        return found
    pairs = _pairs(expected.messages, got, any_order=expected.order == "any")
    for index, (wanted, had) in enumerate(pairs):
        if wanted is None or had is None or not _fits(wanted, had):
            said = "nothing" if wanted is None else _wanted(wanted)
            found.append(Difference(f"{sink}[{index}]", said, _had(had, wanted)))
    return found


def _pairs(
    wanted: Sequence[MessageOptions], got: Sequence[Output], *, any_order: bool
) -> list[tuple[MessageOptions | None, Output | None]]:
    """Which message stands for which expectation; None where there is no more."""
    if any_order:
        return _matched(wanted, got)
    count = max(len(wanted), len(got))
    return [
        (
            wanted[index] if index < len(wanted) else None,
            got[index] if index < len(got) else None,
        )
        for index in range(count)
    ]


def _matched(
    wanted: Sequence[MessageOptions], got: Sequence[Output]
) -> list[tuple[MessageOptions | None, Output | None]]:
    """The most expectations that can be met at once: one that asks for less must not take what another needs."""
    fits = [[i for i, had in enumerate(got) if _fits(one, had)] for one in wanted]
    taken: dict[int, int] = {}

    def place(index: int, tried: set[int]) -> bool:
        for at in fits[index]:
            if at not in tried:
                tried.add(at)
                if at not in taken or place(taken[at], tried):
                    taken[at] = index
                    return True
        return False

    for index in range(len(wanted)):
        place(index, set())
    met = {index: at for at, index in taken.items()}
    rest = [had for at, had in enumerate(got) if at not in taken]
    found: list[tuple[MessageOptions | None, Output | None]] = []
    for index, one in enumerate(wanted):
        found.append((one, got[met[index]] if index in met else rest.pop(0) if rest else None))
    return found + [(None, had) for had in rest]


def _fits(wanted: MessageOptions, had: Output) -> bool:
    if wanted.json_ is not None:
        try:
            fits = _part_of(wanted.value, orjson.loads(had.payload))
        except orjson.JSONDecodeError:
            fits = False
    else:
        fits = wanted.payload in (None, had.payload)
    return (
        fits
        and (wanted.contains is None or wanted.contains.encode() in had.payload)
        and wanted.meta.items() <= had.meta.items()
        and (wanted.key is None or wanted.key.encode() == had.key)
    )


def _part_of(wanted: Any, had: Any) -> bool:
    """Objects may have more keys than expected; everything else is equal, and of one kind."""
    if isinstance(wanted, dict):
        return isinstance(had, dict) and all(
            key in had and _part_of(one, had[key]) for key, one in wanted.items()
        )
    if isinstance(wanted, list):
        same = isinstance(had, list) and len(wanted) == len(had)
        return same and all(_part_of(one, other) for one, other in zip(wanted, had, strict=True))
    if isinstance(wanted, bool) or isinstance(had, bool):
        return wanted is had
    return bool(wanted == had)


def _wanted(one: MessageOptions) -> str:
    parts = []
    if one.json_ is not None:
        parts.append(f"json {one.json_}")
    elif one.payload is not None:
        parts.append(_shown(one.payload))
    if one.contains is not None:
        parts.append(f"contains {_shown(one.contains.encode())}")
    parts += _envelope(one.meta, None if one.key is None else one.key.encode())
    return ", ".join(parts) or "any message"


def _had(one: Output | None, wanted: MessageOptions | None) -> str:
    if one is None:
        return "nothing"
    # Only what was asked for: a message may have much meta.
    asked = {k: v for k, v in one.meta.items() if wanted is None or k in wanted.meta}
    key = one.key if wanted is None or wanted.key is not None else None
    return ", ".join([_shown(one.payload), *_envelope(asked, key), f"of {one.id}"])


def _envelope(meta: Any, key: bytes | None) -> list[str]:
    found = [f"{name}={value}" for name, value in meta.items()]
    return found if key is None else [*found, f"key {_shown(key)}"]


def _shown(data: bytes) -> str:
    try:
        text = repr(data.decode())
    except UnicodeDecodeError:
        text = repr(data)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"


# --- Statuses -----------------------------------------------------------------------------------


def _statuses(receiver: str, expected: StatusesOptions, got: Sequence[Receipt]) -> list[Difference]:
    wanted = expected.each
    if wanted is None:
        wanted = [] if expected.all is None else [expected.all] * len(got)
    found = []
    for index, (one, receipt) in enumerate(zip(wanted, got, strict=True)):
        if not _is(one, receipt) or not _branches(one, receipt):
            said = Difference(f"{receiver}[{index}]", _status(one), _receipt(receipt))
            found.append(said)
    return found


def _is(wanted: BranchOptions, had: Receipt | Branch) -> bool:
    return wanted.wanted is had.status and (wanted.reason or "") in had.reason


def _branches(wanted: StatusOptions, had: Receipt) -> bool:
    """A branch that the receipt does not name has ended as the whole did."""
    return all(
        _is(one, had.branches.get(name, Branch(had.status)))
        for name, one in wanted.branches.items()
    )


def _status(one: StatusOptions | BranchOptions) -> str:
    text = one.status + (f" ({one.reason})" if one.reason else "")
    branches = one.branches if isinstance(one, StatusOptions) else {}
    return text + "".join(f"; {name}: {_status(branch)}" for name, branch in branches.items())


def _receipt(one: Receipt) -> str:
    text = str(one.status) + (f" ({one.reason})" if one.reason else "")
    return text + "".join(
        f"; {name}: {branch.status}" + (f" ({branch.reason})" if branch.reason else "")
        for name, branch in one.branches.items()
    )
