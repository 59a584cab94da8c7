"""A bounded, seeded run of the framing fuzzer; longer ones are run by hand."""

from __future__ import annotations

import base64
import gzip
import random
import struct
import zlib

import lz4.frame
import pytest

from penstock.interceptors.inflate import zstd
from tests.fuzz.fuzz_framing import CHAINS, TestOneInput

PACKERS = [gzip.compress, zlib.compress, zstd.compress, lz4.frame.compress, base64.b64encode]
FRAGMENTS = [
    b"\n",
    b"\r\n",
    b"||",
    b"|",
    b"aba",
    b";",
    b"YQ==",
    b"=",
    b"0 ",
    b"5 hello",
    b"+1 x",
    bytes(8),
    struct.pack(">Q", 3) + b"abc",
    b"\xff" * 8,
    b"\x1f\x8b",
    b"\xff\x06\x00\x00sNaPpY",
    b"\xfe\x01\x00\x00",
    b"x" * 101,
]


def stream(rng: random.Random) -> bytes:
    """Bytes that look like something: pieces of the formats, packed and damaged now and then."""
    data = b"".join(
        rng.choice(FRAGMENTS) if rng.random() < 0.7 else rng.randbytes(rng.randrange(20))
        for _ in range(rng.randrange(30))
    )
    for _ in range(rng.choice([0, 0, 1, 2])):
        data = rng.choice(PACKERS)(data)
        if rng.random() < 0.2:
            data = struct.pack(">Q", len(data)) + data
    if data and rng.random() < 0.3:
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = bytes(damaged)
    return data


def sample(rng: random.Random) -> bytes:
    return rng.randbytes(4) + stream(rng)


@pytest.mark.parametrize("chosen", range(len(CHAINS)))
def test_any_bytes_give_payloads_or_invalid_message(chosen):
    rng = random.Random(chosen)
    for _ in range(300):
        TestOneInput(bytes([chosen]) + rng.randbytes(3) + stream(rng))
