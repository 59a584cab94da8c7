"""A bounded, seeded run of the connector fuzzer; longer ones are run by hand."""

from __future__ import annotations

import random

import pytest

from penstock.connector.frames import encode
from penstock.connector.two_phase import encode_frame, encode_payload
from tests.connector.test_frames import FRAMES, TWO_PHASE
from tests.fuzz.fuzz_connector import HELLO, TestOneInput

PIECES = [
    *(encode(frame) for frame, _ in FRAMES),
    *(encode_frame(message) for message, _ in TWO_PHASE),
]


def stream(rng: random.Random) -> bytes:
    """Frames, damaged now and then."""
    data = b"".join(
        rng.choice(PIECES) if rng.random() < 0.9 else rng.randbytes(rng.randrange(20))
        for _ in range(rng.randrange(40))
    )
    if rng.random() < 0.7:
        data = encode(HELLO) + data
    if data and rng.random() < 0.4:
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = bytes(damaged)
    return data


def sample(rng: random.Random) -> bytes:
    return rng.randbytes(3) + stream(rng)


@pytest.mark.parametrize("target", range(4))
def test_any_bytes_give_events_or_one_reason(target):
    rng = random.Random(target)
    for _ in range(300):
        data = stream(rng)
        if target == 1:
            data = bytearray(encode_payload(rng.choice(TWO_PHASE)[0]) + rng.randbytes(2))
            data = bytes(data[: rng.randrange(len(data) + 1)])
        TestOneInput(bytes([target]) + rng.randbytes(2) + data)
