"""Single messages of many connections, gathered as they come: what a group of small POSTs is.

A `Batch` for each would cost several times what is done with it, and at tens of thousands of requests
a second that is most of what a core has to give.
"""

from __future__ import annotations

from typing import TypeAlias

from penstock.errors import PenstockError
from penstock.limits import MAX_GROUP_BYTES
from penstock.log.interface import Appended, Waiter

MAX_SINGLE_BYTES = MAX_GROUP_BYTES // 16
"""A payload above this is worth a batch of its own."""

_ROOM_BYTES = MAX_GROUP_BYTES // 2
SINGLE_BYTES = 200
"""What a message takes beside its name, meta and payload while it waits: a tuple, its numbers, and the
payload's object, as measured. A run of a frame, which is 28 bytes beside them, takes less."""

Single: TypeAlias = tuple[bytes, bytes, int, int, bytes, Waiter]
"""The source's name, meta, sequence number, time (ns), payload, and who waits."""


class Singles:
    """Only of streams that the edge made up: nobody looks for repeats among these."""

    __slots__ = ("items", "room_bytes")

    def __init__(self) -> None:
        self.items: list[Single] = []
        self.room_bytes = _ROOM_BYTES  # for whoever adds to it: none is left, enough is in it

    @property
    def count(self) -> int:
        return len(self.items)

    @property
    def held_bytes(self) -> int:
        """Memory that they take while they wait for the disk: as `room_bytes` was counted down."""
        return _ROOM_BYTES - self.room_bytes

    @property
    def size_bound(self) -> int:
        """No fewer bytes than these add to a frame."""
        return self.held_bytes

    def settle(self, result: Appended | PenstockError) -> None:
        """Tell everyone. The messages have one offset after another."""
        if isinstance(result, PenstockError):
            for _, _, seq, _, _, waiter in self.items:
                waiter.refused(seq, result)
            return
        offset = result.offset
        for _, _, seq, _, _, waiter in self.items:
            waiter.stored(seq, offset)
            offset += 1
