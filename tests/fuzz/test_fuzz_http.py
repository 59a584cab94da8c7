"""The HTTP receiver takes any bytes, in any pieces; a bounded run of its fuzzer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import httptools
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.edge.http.chunks import ChunkedBody
from penstock.edge.http.head import Refused
from tests.fuzz.fuzz_http import RECEIVERS, TestOneInput, check
from tests.fuzz.http_door import Door, cut

METHODS = [b"POST", b"POST", b"POST", b"POST", b"GET", b"HEAD", b"PUT", b"BREW", b"post", b""]
TARGETS = [
    b"/",
    b"/",
    b"/?dest=a",
    b"/in/x?a=1&b=%C3%BC&sync=false",
    b"/?sync=true",
    b"/?penstock.replay=a",
    b"http://x/in",
    b"*",
    b"/receipts/in/~0000000000000000000a/0",
    b"/receipts/in/till/7?at=0:0",
    b"/receipts/x",
]
VERSIONS = [b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.1 "]
HEADERS = [
    b"host: y",
    b"connection: close",
    b"connection: keep-alive",
    b"connection: upgrade\r\nupgrade: h2c",
    b"expect: 100-continue",
    b"expect: more",
    b"content-type: application/x-ndjson",
    b"content-type: application/cloudevents+json",
    b"content-type: application/cloudevents-batch+json",
    b"content-encoding: gzip",
    b"content-length: 1",
    b"content-length: 99999",
    b"transfer-encoding: chunked",
    b"transfer-encoding: gzip, chunked",
    b"idempotency-key: k",
    b"penstock-stream: s\r\npenstock-sequence: 3",
    b"penstock-stream: s",
    b"authorization: Bearer t",
    b"x-a: \xff",
    b"y-b: c",
    b"prefer: wait=1",
    b"ce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t",
    b"ce-id: 1",
    b" folded: x",
    b"bad header: x",
    b"x: a\rb",
    b"z: " + b"z" * 300,
]
BODIES = [
    b"",
    b"x",
    b"a\nb\n\nc",
    b"a;b",
    b"\0\0\0\0\0\0\0\1x",
    b"\0\0\0\0\0\0\0\2x",
    b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":1}',
    b'[{"specversion":"1.0","id":"1","source":"/s","type":"t"}]',
    b"[]",
    b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\ny",
    b"x" * 1500,
    b"y" * 5000,
]


def in_chunks(body: bytes, size: int) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def make_request(choose: Callable[[list[bytes]], bytes], number: Callable[[int], int]) -> bytes:
    """Something like a request, more often right than wrong."""
    lines = [b" ".join((choose(METHODS), choose(TARGETS), choose(VERSIONS)))]
    if number(10):
        lines.append(b"host: x")
    lines += [choose(HEADERS) for _ in range(number(4))]
    body = choose(BODIES)
    match number(5):
        case 0:
            pass  # it may not say how long it is
        case 1:
            lines.append(b"Transfer-Encoding: chunked")
            body = in_chunks(body, 1 + number(40))
        case _:
            lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def sample(rng: random.Random) -> bytes:
    requests = (make_request(rng.choice, rng.randrange) for _ in range(1 + rng.randrange(4)))
    return rng.randbytes(4) + b"".join(requests)


@st.composite
def conversations(draw: st.DrawFn) -> bytes:
    """Requests one after another, and sometimes a byte that does not belong."""

    def number(limit: int) -> int:
        return draw(st.integers(0, limit - 1))

    def choose(options: list[bytes]) -> bytes:
        return options[number(len(options))]

    data = b"".join(make_request(choose, number) for _ in range(1 + number(5)))
    if number(4) == 0:
        at = number(len(data))
        data = data[:at] + draw(st.binary(max_size=4)) + data[at + number(3) :]
    return data


PLAIN = b"POST /?dest=a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"


@given(
    st.integers(0, len(RECEIVERS) - 1),
    conversations(),
    st.lists(st.integers(0, 5000), max_size=12),
    st.booleans(),
)
@settings(max_examples=400)
@example(0, PLAIN * 300, [0], False)
@example(0, b"\r\n\r\n" + PLAIN, [1], True)
@example(0, b"\r", [0], True)
def test_pieces_and_heads_seen_before_change_nothing(
    chosen: int, data: bytes, places: list[int], eager: bool
) -> None:
    options = {name: value for name, value in RECEIVERS[chosen].items() if name != "interceptors"}
    stages = RECEIVERS[chosen].get("interceptors", ())

    async def compare() -> None:
        fresh = Door(stages, **options)  # type: ignore[arg-type]
        whole = await fresh.talk([data], eager=eager)
        check(whole)
        again = await fresh.talk([data], eager=not eager)
        assert again == whole
        for door in (fresh, Door(stages, **options)):  # type: ignore[arg-type]
            assert await door.talk(cut(data, places), eager=eager) == whole

    asyncio.run(compare())


@given(st.lists(st.sampled_from([PLAIN, PLAIN.replace(b"abc", b"xyz")]), max_size=40), st.data())
def test_requests_one_at_a_time_are_taken_as_in_a_pipeline(
    requests: list[bytes], data: st.DataObject
) -> None:
    """One request a read is what the express lane is for; all at once it never sees."""

    async def compare() -> None:
        door = Door()
        singly = await door.talk(requests, eager=data.draw(st.booleans()))
        assert singly == await Door().talk([b"".join(requests)], eager=True)
        assert [payload for _, _, payload, _ in singly.stored] == [r[-3:] for r in requests]

    asyncio.run(compare())


@given(st.binary(max_size=600), st.lists(st.integers(0, 600), max_size=5))
def test_garbage_is_answered_or_dropped_and_nothing_stays(data: bytes, places: list[int]) -> None:
    async def compare() -> None:
        door = Door(max_inflight_bytes=100)
        await door.talk(cut(data, places), eager=True)
        assert door.memory.stored == []

    asyncio.run(compare())


@given(conversations(), st.lists(st.integers(0, 5000), max_size=12))
def test_a_limit_on_bytes_in_flight_leaks_none(data: bytes, places: list[int]) -> None:
    async def talk() -> None:
        door = Door(max_inflight_bytes=50)
        check(await door.talk(cut(data, places), eager=False))

    asyncio.run(talk())


@pytest.mark.parametrize("chosen", range(len(RECEIVERS)))
def test_the_fuzzer_finds_nothing(chosen: int) -> None:
    chance = random.Random(chosen)
    for _ in range(150):
        data = b"".join(make_request(chance.choice, chance.randrange) for _ in range(3))
        if chance.random() < 0.4:
            at = chance.randrange(len(data))
            data = data[:at] + chance.randbytes(chance.randrange(3)) + data[at + 1 :]
        TestOneInput(bytes([chosen]) + chance.randbytes(3) + data)


# --- Chunked bodies, beside another reader ------------------------------------------------------


class Other:
    """httptools' own reading of a chunked body."""

    def __init__(self) -> None:
        self.body = b""
        self.complete = False

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


CHUNKS = [b"3\r\nabc\r\n", b"0a;x=y\r\n0123456789\r\n", b"0\r\n\r\n", b"0\r\na: b\r\n\r\n"]
SCRAPS = [
    b'0;a="b\\"c";d\r\n',
    b"3",
    b"\r\n",
    b"\n",
    b"\r",
    b"abc",
    b"g",
    b" ",
    b";",
    b"0",
    b"-1",
    b"ffffffffffff",
]


@given(
    st.lists(st.sampled_from(CHUNKS + SCRAPS), max_size=8),
    st.lists(st.integers(0, 80), max_size=6),
)
@settings(max_examples=500)
@example([b"0\r\n0\r\n\r\n"], [])
@example([b"3 \r\nabc\r\n0\r\n\r\n"], [])
@example([b"0;\r\n\r\n"], [])
def test_what_is_taken_for_a_chunked_body_is_one_to_others_too(
    parts: list[bytes], places: list[int]
) -> None:
    data = b"".join(parts)
    ours, found, taken = ChunkedBody(), bytearray(), 0
    try:
        for piece in cut(data, places):
            taken += ours.feed(piece, 0, found.extend)
            if ours.complete:
                break
    except Refused:
        return
    if not ours.complete:
        return  # half a line: nothing has been made of it yet
    other = Other()
    parser = httptools.HttpRequestParser(other)
    parser.feed_data(HEAD + data[:taken])  # raises if it does not take what we took
    assert other.complete
    assert other.body == bytes(found)
