"""A fuzz target: the interceptors.

The first bytes of an input choose a chain, whether the input is framed, and where the stream is cut;
the rest is the stream. What must hold for any bytes whatever:

- nothing but InvalidMessage is raised;
- the same payloads come out however the stream is cut, and up to the same error, unless a
  decompressor lies before it (those lose what they unpacked just before damage);
- payloads are never longer than their limit, and nothing holds back more than a payload;
- what came in and can be sent again comes back the same.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidMessage
from penstock.interceptors.chain import Chain, chain_factory
from penstock.interceptors.interface import Payloads

MAX_LENGTH = 100
MAX_INFLATED = 4096
LONGEST_HEADER = 21 + 10  # a textual length, and a magic that is not yet told

LENGTH: dict[str, Any] = {"max_length": MAX_LENGTH}
INFLATED: dict[str, Any] = {"max_inflated": MAX_INFLATED}
LINES = ("lines", LENGTH | {"keep_empty": True})
SEPARATE = ("separate", LENGTH | {"delimiter": "||"})
PREFIXED = ("length_prefixed", LENGTH)
TEXTUAL = ("textual_length_prefixed", LENGTH)
GZIP = ("gzip", INFLATED)
DECOMPRESS = ("decompress", INFLATED)
BASE64: tuple[str, dict[str, Any]] = ("base64", {})

CHAINS: list[list[tuple[str, dict[str, Any]]]] = [
    [LINES],
    [("lines", LENGTH)],
    [SEPARATE],
    [("separate", LENGTH | {"delimiter": ";"})],
    [("separate", LENGTH | {"delimiter": "aba"})],
    [PREFIXED],
    [TEXTUAL],
    [BASE64],
    [GZIP],
    [DECOMPRESS],
    [LINES, BASE64],
    [TEXTUAL, LINES],
    [PREFIXED, BASE64],
    [PREFIXED, GZIP],
    [PREFIXED, DECOMPRESS],
    [GZIP, LINES],
    [DECOMPRESS, LINES],
    [DECOMPRESS, TEXTUAL, SEPARATE],
    [BASE64, PREFIXED],
    [BASE64, DECOMPRESS, LINES, BASE64],
]
UNPACKING = {"gzip", "decompress"}
FRAMING = {"lines", "separate", "length_prefixed", "textual_length_prefixed"}


def TestOneInput(data: bytes) -> None:
    if len(data) < 4:
        return
    specs = CHAINS[data[0] % len(CHAINS)]
    framed = data[1] % 4 == 0
    first, rest = data[2], data[4:]
    step = data[3] or 256
    names = {name for name, _ in specs}
    if framed:
        _check_framed(specs, rest)
        return
    whole, error = _feed(chain_factory(specs, False)(), [rest])
    chunks = [rest[:first], *(rest[at : at + step] for at in range(first, len(rest), step))]
    pieces, cut_error = _feed(chain_factory(specs, False)(), chunks)
    if not names & FRAMING:
        # Without framing a payload is what one read gave: only all of them together are the same.
        whole, pieces = [b"".join(whole)], [b"".join(pieces)]
    if names & UNPACKING:
        # The limit is for what one chunk unpacks to, and damage loses what came just before it.
        if error is None:
            assert cut_error is None, cut_error
            assert pieces == whole
        return
    assert pieces == whole, (specs, pieces, whole)
    assert str(error) == str(cut_error), (specs, error, cut_error)


def _feed(chain: Chain, chunks: list[bytes]) -> tuple[list[bytes], str | None]:
    found: list[bytes] = []
    try:
        for chunk in chunks:
            buffer = bytearray(chunk)
            payloads = chain.feed(memoryview(buffer))
            buffer[:] = b"\xaa" * len(buffer)
            found += _checked(payloads)
            assert chain.failed or chain.held_bytes <= 2 * (MAX_LENGTH + LONGEST_HEADER)
        found += _checked(chain.flush())
    except InvalidMessage as error:
        return found, str(error)
    return found, None


def _checked(payloads: Payloads) -> list[bytes]:
    blob = payloads.blob
    assert isinstance(blob, bytes)
    if payloads.lengths is not None:
        assert int(payloads.lengths.sum()) == len(blob)
        assert payloads.lengths.dtype == "uint32"
    return [bytes(payload) for payload in payloads]


def _check_framed(specs: list[tuple[str, dict[str, Any]]], message: bytes) -> None:
    chain = chain_factory(specs, True)()
    try:
        payloads = chain.feed(message)
    except InvalidMessage:
        assert chain.failed is None
        return
    finally:
        assert chain.held_bytes == 0
    pieces = _checked(payloads)
    if specs[-1][0] in FRAMING:
        assert max(map(len, pieces), default=0) <= MAX_LENGTH
    try:
        again = [bytes(sent) for sent in chain.wrap(payloads)]
    except InvalidMessage:
        return  # an unpacked payload may be too long for the frame it would have to go into
    assert len(again) == len(pieces)
    back = chain_factory(specs, True)()
    for piece, sent in zip(pieces, again, strict=True):
        try:
            assert _checked(back.feed(sent)) == [piece], (specs, piece, sent)
        except InvalidMessage as error:
            raise AssertionError((specs, piece, sent, str(error))) from error
