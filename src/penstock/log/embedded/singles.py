"""Single messages of many connections, gathered as they come: what a group of small POSTs is.

As columns from the start. A `Batch` for each would cost several times what is done with it, and at
tens of thousands of requests a second that is most of what a core has to give.
"""

from __future__ import annotations

from time import time_ns

from penstock.errors import PenstockError
from penstock.limits import MAX_GROUP_BYTES
from penstock.log.interface import Appended, Waiter
from penstock.message import Source

MAX_SINGLE_BYTES = MAX_GROUP_BYTES // 16
"""A payload above this is worth a batch of its own."""

_ENOUGH_BYTES = MAX_GROUP_BYTES // 2
_RUN_BYTES = 40  # what a run adds to a frame beside its name, meta and payload, and some


class Singles:
    """Only of streams that the edge made up: nobody looks for repeats among these."""

    __slots__ = (
        "metas",
        "names",
        "payloads",
        "seqs",
        "size_bound",
        "size_bytes",
        "times_ns",
        "waiters",
    )

    def __init__(self) -> None:
        self.names: list[bytes] = []
        self.metas: list[bytes] = []
        self.seqs: list[int] = []
        self.times_ns: list[int] = []
        self.payloads: list[bytes] = []
        self.waiters: list[Waiter] = []
        self.size_bytes = 0
        self.size_bound = 0

    @property
    def count(self) -> int:
        return len(self.seqs)

    def add(self, source: Source, seq: int, payload: bytes, meta: bytes, waiter: Waiter) -> bool:
        """False: that was enough for one group."""
        name = source.name
        self.names.append(name)
        self.metas.append(meta)
        self.seqs.append(seq)
        self.times_ns.append(time_ns())
        self.payloads.append(payload)
        self.waiters.append(waiter)
        size = len(payload)
        self.size_bytes += size
        self.size_bound += size + len(name) + len(meta) + _RUN_BYTES
        return self.size_bound < _ENOUGH_BYTES

    def settle(self, result: Appended | PenstockError) -> None:
        """Tell everyone. The messages have one offset after another."""
        if isinstance(result, PenstockError):
            for waiter, seq in zip(self.waiters, self.seqs, strict=True):
                waiter.refused(seq, result)
            return
        offset = result.offset
        for waiter, seq in zip(self.waiters, self.seqs, strict=True):
            waiter.stored(seq, offset)
            offset += 1
