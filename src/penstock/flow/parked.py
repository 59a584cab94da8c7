"""Which messages wait in a park: one bit each, since there may be very many."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.sinks.bits import Offsets, pack, unpack


@dataclass(frozen=True, slots=True)
class Parked:
    """Messages of one partition that wait for a sink. `bits` (packed, compressed) begin at `start`."""

    sink: str
    topic: str
    partition: int
    start: int
    bits: bytes

    @classmethod
    def of(cls, sink: str, topic: str, partition: int, offsets: Offsets) -> Parked:
        start, bits = pack(offsets)
        return cls(sink, topic, partition, start, bits)

    @property
    def offsets(self) -> Offsets:
        return unpack(self.start, self.bits)
