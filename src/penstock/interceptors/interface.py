"""Interceptors: from a stream's bytes to message payloads and back, one state per stream.

Everything moves as `Payloads`: one blob of payloads end to end, and an array of their lengths. A
raw read from a socket is one payload. Each interceptor takes payloads and gives payloads; a chain
runs them in the order of the configuration on the way in, and in reverse on the way out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from penstock.message import Buffer, Lengths


@dataclass(slots=True)
class Payloads:
    """`lengths` None stands for exactly one payload: all of `blob`."""

    blob: Buffer
    lengths: Lengths | None = None

    @property
    def count(self) -> int:
        return 1 if self.lengths is None else len(self.lengths)

    def __iter__(self) -> Iterator[memoryview]:
        """One at a time; for small volumes and tests."""
        view = memoryview(self.blob)
        if self.lengths is None:
            yield view
            return
        at = 0
        for length in self.lengths.tolist():
            yield view[at : at + length]
            at += length


NOTHING = Payloads(b"", np.empty(0, np.uint32))


class Interceptor(Protocol):
    """One stream's state. Raises InvalidMessage (with reason and position) on bytes it cannot take;
    the stream is then over, and what was half read is discarded."""

    def feed(self, chunk: Payloads) -> Payloads:
        """The next bytes of the stream (or the next payloads of the interceptor before)."""

    def flush(self) -> Payloads:
        """The stream ended: what is left, or InvalidMessage if it ended inside a payload."""

    def wrap(self, payloads: Payloads) -> Payloads:
        """The way out: what `feed` on the other side turns back into these payloads."""

    def finish(self) -> bytes:
        """The way out ends: trailing bytes (of a compressed stream, say)."""
