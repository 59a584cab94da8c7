"""The lines that answer messages of a TCP or unix connection: STATUS ID [REASON]."""

from __future__ import annotations

from penstock.edge.waiting import Outcome, Wait
from penstock.message import Batch


class Reply:
    """What is due for the messages of one read. `lines` None: it is not known yet."""

    __slots__ = ("_first", "_prefix", "count", "lines", "partition", "wait")

    def __init__(self, batch: Batch) -> None:
        # Not the batch itself: its payloads are on disk by the time this is needed.
        self._prefix = f"{batch.peer}/{batch.stream}/"
        self._first = batch.seq
        self.count = batch.count
        self.partition = 0
        self.lines: bytes | None = None
        self.wait: Wait | None = None

    def all(self, status: str, reason: str = "") -> bytes:
        """The same for every message."""
        prefix, tail = f"{status} {self._prefix}", f" {one_line(reason)}\n" if reason else "\n"
        numbers = range(self._first, self._first + self.count)
        return "".join([f"{prefix}{number}{tail}" for number in numbers]).encode()

    def each(self, start: int, outcome: Outcome) -> bytes:
        """What became of each; the first is at the offset `start`."""
        if not outcome.receipts:
            return self.all("done")
        told = {offset - start: receipt for offset, receipt in outcome.receipts}
        lines = []
        for number in range(self.count):
            name = f"{self._prefix}{self._first + number}"
            receipt = told.get(number)
            if receipt is None:
                lines.append(f"done {name}\n")
            elif receipt.reason:
                lines.append(f"{receipt.status} {name} {one_line(receipt.reason)}\n")
            else:
                lines.append(f"{receipt.status} {name}\n")
        return "".join(lines).encode()


def one_line(text: str) -> str:
    return " ".join(text.split())
