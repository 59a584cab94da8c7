"""How the tests of this folder put bytes through interceptors.

Everything goes through one receive buffer that is overwritten after each `feed`, as a socket's is:
whoever keeps a view into it is found out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from penstock.errors import InvalidMessage
from penstock.interceptors.chain import Chain, chain_factory
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.message import Batch

Given = str | tuple[str, dict[str, Any]]


def chain(*interceptors: Given, framed: bool = False) -> Chain:
    specs = [(given, {}) if isinstance(given, str) else given for given in interceptors]
    return chain_factory(specs, framed)()


def payloads(*pieces: bytes) -> Payloads:
    batch = Batch.of("p", "s", 0, list(pieces))
    return Payloads(batch.payload, batch.lengths)


def pieces(found: Payloads) -> list[bytes]:
    assert found.lengths is None or len(found.blob) == int(found.lengths.sum())
    return [bytes(payload) for payload in found]


def feed(chain: Chain, chunks: Iterable[bytes]) -> tuple[list[bytes], InvalidMessage | None]:
    """Every payload of a stream that comes in these chunks, and the error that it ended with."""
    found: list[Payloads] = []
    error = None
    try:
        for chunk in chunks:
            buffer = bytearray(chunk)
            found.append(chain.feed(memoryview(buffer)))
            buffer[:] = b"\xaa" * len(buffer)
        found.append(chain.flush())
    except InvalidMessage as reason:
        error = reason
    return [piece for some in found for piece in pieces(some)], error


def good(chain: Chain, *chunks: bytes) -> list[bytes]:
    found, error = feed(chain, chunks)
    if error is not None:
        raise error
    return found


def split(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """`data` in chunks, cut at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


cuts = st.lists(st.integers(0, 10_000), max_size=8)

__all__ = ["NOTHING", "chain", "cuts", "feed", "good", "payloads", "pieces", "split"]
