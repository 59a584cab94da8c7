"""The requests of `sink.http`: their bodies and their keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from penstock.config.registry import REGISTRY, Kind
from penstock.limits import HTTP_BATCH_BYTES, HTTP_BATCH_EVENTS, MAX_FRAME_BYTES
from penstock.message import Buffer, EventId
from penstock.sinks.columns import pieces
from penstock.sinks.framing import Framing

_KEY_CHARS: Final = 200
"""A longer key is replaced by its digest: servers remember keys, and limit them."""


@dataclass(frozen=True, slots=True)
class Body:
    """What to send, and for which events: `count` of them, beginning at `start`."""

    batch: pa.RecordBatch
    start: int
    count: int
    keys: tuple[str, ...]  # of the events
    data: Buffer

    @property
    def events(self) -> pa.RecordBatch:
        return self.batch.slice(self.start, self.count)

    @property
    def key(self) -> str:
        """The same for the same events, and for no others."""
        if self.count == 1:
            return self.keys[0]
        return xxh3_128_hexdigest("\n".join(self.keys).encode())


class Bodies:
    """Of one task. Used by several threads, which share no stream."""

    def __init__(self, framing: Framing, *, batch: bool) -> None:
        self._batch = batch
        self._framing = _as_lines(framing) if batch else framing
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def check(self, events: pa.RecordBatch) -> None:
        """Poisoned, if some of the events cannot be put into a body."""
        if self._framing.specs:
            self._framing.begin().wrap(events.column("payload"))

    def of(self, events: pa.RecordBatch) -> Iterator[Body]:
        """In order. The events have passed `check`."""
        if self._batch:
            for large in pieces(events, HTTP_BATCH_BYTES):
                for start in range(0, large.num_rows, HTTP_BATCH_EVENTS):
                    part = large.slice(start, HTTP_BATCH_EVENTS)
                    yield self._joined(part, 0, part.num_rows, tuple(self._keys(part)))
            return
        payloads = self._framing.begin().wrap(events.column("payload"))
        for index, (key, data) in enumerate(zip(self._keys(events), payloads, strict=True)):
            yield Body(events, index, 1, (key,), data)

    def halves(self, body: Body) -> tuple[Body, Body]:
        half = body.count // 2
        return (
            self._joined(body.batch, body.start, half, body.keys[:half]),
            self._joined(body.batch, body.start + half, body.count - half, body.keys[half:]),
        )

    def _joined(self, batch: pa.RecordBatch, start: int, count: int, keys: tuple[str, ...]) -> Body:
        wrapper = self._framing.begin()
        wrapped = wrapper.wrap(batch.column("payload").slice(start, count)).blob
        rest = wrapper.finish()
        return Body(batch, start, count, keys, bytes(wrapped) + rest if rest else wrapped)

    def _keys(self, events: pa.RecordBatch) -> Iterator[str]:
        """The events' ids. Several events may have been made of one message: they are told apart by a
        number, which is the same when the transaction is tried again."""
        ids = zip(
            events.column("peer").to_pylist(),
            events.column("stream").to_pylist(),
            events.column("seq").to_pylist(),
            strict=True,
        )
        for peer, stream, seq in ids:
            last, number = self._last.get((peer, stream), (-1, 0))
            number = number + 1 if last == seq else 1
            self._last[peer, stream] = (seq, number)
            yield _key(str(EventId(peer, stream, seq)) + (f"#{number}" if number > 1 else ""))


def _key(text: str) -> str:
    """As a header can carry it."""
    plain = text if text.isascii() and text.isprintable() else quote(text, safe="/~:#")
    return plain if len(plain) <= _KEY_CHARS else xxh3_128_hexdigest(text.encode())


def _as_lines(framing: Framing) -> Framing:
    """For a body of many messages, which is a short stream: one a line, if nothing else is said."""
    cuts = [
        declaration.options.cuts
        for name, _ in framing.specs
        if (declaration := REGISTRY.find(Kind.INTERCEPTOR, name)) is not None
    ]
    lines = () if any(cuts) else (("lines", {"max_length": MAX_FRAME_BYTES}),)
    return replace(framing, specs=(*framing.specs, *lines), framed=False)
