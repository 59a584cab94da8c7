"""The way out through interceptors: a column of payloads to the bytes that are sent or stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from penstock.config.flow import Stage
from penstock.config.registry import REGISTRY, Kind
from penstock.errors import InvalidMessage
from penstock.interceptors.chain import Chain, chain_factory
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.sinks.columns import Column, bytes_of, offsets_of
from penstock.sinks.interface import Poisoned

Specs = tuple[tuple[str, Mapping[str, Any]], ...]


@dataclass(frozen=True, slots=True)
class Framing:
    """The interceptors of a sink, as its configuration has them. Picklable.

    `framed`: every message stands by itself (a datagram, an HTTP body), and not in a stream of bytes.
    """

    specs: Specs = ()
    framed: bool = False

    @classmethod
    def of(cls, stages: tuple[Stage, ...], *, framed: bool) -> Framing:
        return cls(tuple((stage.name, stage.options.wire()) for stage in stages), framed)

    @property
    def can_go_on(self) -> bool:
        """Whether a stream that was finished may be followed by another on the same connection.

        `decompress` decides by the first bytes of a connection for all of it.
        """
        for name, _ in self.specs:
            declaration = REGISTRY.find(Kind.INTERCEPTOR, name)
            if declaration is not None and declaration.options.cuts:
                break
            if name == "decompress":
                return False
        return True

    def begin(self) -> Wrapper:
        """For a new stream."""
        return Wrapper(chain_factory(self.specs, self.framed))


class Wrapper:
    """One stream's way out. Used by one thread."""

    def __init__(self, make_chain: Callable[[], Chain]) -> None:
        self._make_chain = make_chain
        self._chain = make_chain()

    def wrap(self, payload: Column) -> Payloads:
        """What to send for these payloads: all of them, or Poisoned with those that cannot be sent.

        On a stream the result is one run of bytes; framed, one message for each payload.
        """
        if not len(payload):
            return NOTHING
        payload = pc.fill_null(payload, b"")
        lengths = np.diff(offsets_of(payload)).astype(np.uint32)
        try:
            return self._chain.wrap(Payloads(bytes_of(payload), lengths))
        except InvalidMessage as error:
            raise Poisoned(str(error), self._unfit(payload)) from None

    def finish(self) -> bytes:
        """The stream ends: its last bytes. What is wrapped after them begins a new one."""
        rest = self._chain.finish()
        self._chain = self._make_chain()
        return rest

    def _unfit(self, payload: Column) -> dict[int, str]:
        """Which payloads cannot be sent, and why: one by one, since something is known to be wrong."""
        found = {}
        chain = self._make_chain()
        for index, value in enumerate(payload.to_pylist()):
            try:
                chain.wrap(Payloads(value))
            except InvalidMessage as error:
                found[index] = str(error)
        return found
