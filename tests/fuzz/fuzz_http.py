"""A fuzz target: the HTTP receiver.

The first bytes of an input choose the receiver's options, when the disk answers and where the bytes are cut;
the rest is what a client sends. What must hold for any bytes whatever:

- nothing is raised, no connection hangs, nothing stays accounted for;
- the answers, and what is stored, are the same however the bytes come, and whether or not their heads have
  been seen before;
- what is stored is what was answered 202.
"""

from __future__ import annotations

import asyncio
import json

from tests.fuzz.http_door import Door, Seen, cut

RECEIVERS: list[dict[str, object]] = [
    {},
    {"path": "/in", "tokens": ["t"], "meta_headers": ["x-a", "y-*"]},
    {"mode": "lines"},
    {"mode": "length_prefixed"},
    {"mode": "one"},
    {"interceptors": [("separate", {"delimiter": ";"})]},
    {"interceptors": [("decompress", {})]},
]
_loop = asyncio.new_event_loop()


def TestOneInput(data: bytes) -> None:
    if len(data) < 4:
        return
    chosen = RECEIVERS[data[0] % len(RECEIVERS)]
    options = {name: value for name, value in chosen.items() if name != "interceptors"}
    door = Door(chosen.get("interceptors", ()), **options)  # type: ignore[arg-type]
    eager, step, first, sent = bool(data[1] & 1), data[2] or 256, data[3], data[4:]
    places = [first, *range(first, len(sent), step)]
    whole = _talk(door, [sent], eager=not eager)
    check(whole)
    assert _talk(door, [sent], eager=eager) == whole, "heads that were seen before mean the same"
    assert _talk(door, cut(sent, places), eager=eager) == whole, "pieces mean the same as the whole"


def _talk(door: Door, chunks: list[bytes], *, eager: bool) -> Seen:
    return _loop.run_until_complete(door.talk(chunks, eager=eager))


def check(seen: Seen) -> None:
    """What was answered 202 is what is stored."""
    accepted = 0
    for code, _, body in seen.answers:
        if code == 202 and body:
            told = json.loads(body)
            accepted += told.get("count", 1)
    assert accepted == len(seen.stored), (accepted, seen.stored)
