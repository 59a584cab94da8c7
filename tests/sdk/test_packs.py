"""Frames that a source makes many of at once are those that it would make one by one."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.connector.frames import Message, encode
from penstock.sdk.messages import Outgoing
from penstock.sdk.packs import make_pack


@pytest.mark.parametrize(
    "messages",
    [
        [b"one", b"two", b"six"],
        [b"one", b"three", b""],
        [b"", b""],
        [b"x" * 5000, b"y" * 5000],
        [b"plain", Outgoing(b"keyed", key=b"k", event_time=7), Outgoing(b"", key=b"k2")],
    ],
)
def test_a_pack_is_its_messages_end_to_end(messages: list[bytes | Outgoing]) -> None:
    ids = np.arange(3, 3 + len(messages), dtype=np.uint64)
    pack = make_pack(9, ids, messages)
    whole = [one if isinstance(one, Outgoing) else Outgoing(one) for one in messages]
    frames = [
        encode(Message(9, number, one.event_time, one.key or None, one.payload or None))
        for number, one in enumerate(whole, 3)
    ]
    assert bytes(pack.frames) == b"".join(frames)
    assert pack.ends.tolist() == np.cumsum([len(frame) for frame in frames]).tolist()
    first, rest = pack.cut(1)
    assert bytes(first.frames) + bytes(rest.frames) == b"".join(frames)
