"""The way out of many payloads at a time gives the bytes that one by one gives."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock.errors import InvalidMessage, TooLarge

from .feeding import chain, payloads

FRAMINGS: list[Any] = [
    ("lines", {"keep_empty": True}),
    ("separate", {"delimiter": "\0"}),
    ("separate", {"delimiter": "<end>"}),
    ("length_prefixed", {}),
    ("textual_length_prefixed", {}),
]


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 5000])
def test_many_are_framed_as_each_is(framing: Any, count: int) -> None:
    chosen = random.Random(count)
    sent = [
        bytes(chosen.randrange(32, 127) for _ in range(chosen.randrange(40))) for _ in range(count)
    ]
    together = bytes(chain(framing).wrap(payloads(*sent)).blob)
    assert together == b"".join(bytes(chain(framing).wrap(payloads(one)).blob) for one in sent)


@pytest.mark.parametrize("framing", FRAMINGS)
def test_one_that_is_too_long_is_found_among_many(framing: Any) -> None:
    name, options = framing
    small = chain((name, {**options, "max_length": 10}))
    with pytest.raises(TooLarge, match="11 bytes cannot be sent"):
        small.wrap(payloads(*[b"x" * 10] * 100, b"x" * 11))


@pytest.mark.parametrize("framing", FRAMINGS[:3])
def test_one_that_has_the_delimiter_in_it_is_found_among_many(framing: Any) -> None:
    delimiter = framing[1].get("delimiter", "\n").encode()
    with pytest.raises(InvalidMessage, match="has the delimiter"):
        chain(framing).wrap(payloads(*[b"x" * 10] * 100, b"a" + delimiter + b"b"))
