"""What the built-in interceptors share: two ways of working, and how they fail.

Before anything has cut a stream into payloads, a stage works on the stream as one run of bytes, in
whatever chunks the socket gives (`feed`, `flush`, `wrap`, `finish`). After that, or where the input
comes in messages anyway (a datagram, an HTTP body), it works on each payload by itself and keeps
nothing from one to the next (`whole`, `wrap_whole`); `Each` puts that behind the same interface.

A chunk may hold good payloads and then bytes that cannot be taken. Where chunks begin and end is an
accident of the network, so the good ones are not lost: the stage returns them and notes the error
in `failed`. The stream is over all the same, and `Chain` raises that error on the next call.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from penstock.errors import InvalidMessage
from penstock.interceptors.interface import NOTHING, Interceptor, Payloads
from penstock.message import Buffer


class Stage(Interceptor):
    """One interceptor of one stream. What it returns never points into what it was given, unless
    that was `bytes`."""

    frames: ClassVar[bool] = False
    """Whether it turns a run of bytes into payloads."""

    failed: InvalidMessage | None = None
    """Why the stream ended after the payloads that were returned last."""

    @property
    def held_bytes(self) -> int:
        """Bytes kept for a payload that has not come to its end."""
        return 0

    @abstractmethod
    def feed(self, chunk: Payloads) -> Payloads: ...

    def flush(self) -> Payloads:
        return NOTHING

    @abstractmethod
    def wrap(self, payloads: Payloads) -> Payloads: ...

    def finish(self) -> bytes:
        return b""

    @abstractmethod
    def whole(self, payload: Buffer) -> Payloads:
        """What is in a payload that stands by itself. Keeps no state; all or nothing."""

    @abstractmethod
    def wrap_whole(self, payload: Buffer) -> bytes:
        """What `whole` on the other side turns back into this payload."""

    def give(self, payloads: Payloads, error: InvalidMessage | None) -> Payloads:
        """The payloads that came before `error`, which is raised at once if there are none."""
        if error is not None:
            if not payloads.count:
                raise error
            self.failed = error
        return payloads


class Each(Stage):
    """Runs a stage on every payload by itself.

    `framed` says that every chunk is a message of its own: payloads are then counted from its
    beginning, and not from the beginning of the stream, when an error names one.
    """

    def __init__(self, stage: Stage, framed: bool) -> None:
        self._stage = stage
        self._framed = framed
        self._seen = 0

    def feed(self, chunk: Payloads) -> Payloads:
        if self._framed and chunk.lengths is None:
            return self._stage.whole(chunk.blob)
        found: list[Payloads] = []
        error = None
        for index, payload in enumerate(chunk):
            try:
                found.append(self._stage.whole(payload))
            except InvalidMessage as reason:
                number = index if self._framed else self._seen + index
                error = type(reason)(f"payload {number}: {reason}")
                break
        self._seen += chunk.count
        return self.give(join(found), error)

    def wrap(self, payloads: Payloads) -> Payloads:
        if payloads.lengths is None:
            return Payloads(self._stage.wrap_whole(payloads.blob))
        return of([self._stage.wrap_whole(payload) for payload in payloads])

    def whole(self, payload: Buffer) -> Payloads:
        return self._stage.whole(payload)

    def wrap_whole(self, payload: Buffer) -> bytes:
        return self._stage.wrap_whole(payload)


def run(data: Buffer) -> Payloads:
    """Bytes of a stream as one chunk. No bytes are no chunk: an empty one would be a payload."""
    return Payloads(data) if len(data) else NOTHING


def of(pieces: Sequence[bytes]) -> Payloads:
    """Payloads from separate pieces."""
    if len(pieces) == 1:
        return Payloads(pieces[0])
    if not pieces:
        return NOTHING
    return Payloads(b"".join(pieces), np.fromiter(map(len, pieces), np.uint32, len(pieces)))


def join(parts: Sequence[Payloads]) -> Payloads:
    """All payloads of all parts, in order."""
    parts = [part for part in parts if part.count]
    if not parts:
        return NOTHING
    if len(parts) == 1:
        return parts[0]
    lengths = [
        np.array([len(part.blob)], np.uint32) if part.lengths is None else part.lengths
        for part in parts
    ]
    return Payloads(b"".join(part.blob for part in parts), np.concatenate(lengths))
