"""Frames between the supervisor and its processes, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.edge.control import Control, encode_frame
from penstock.edge.plan import EdgePlan, ReceiverPlan
from penstock.errors import Unavailable
from penstock.limits import CONTROL_FRAME_BYTES

SECRET = "hunter2-secret"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


async def _pair() -> tuple[Control, Control]:
    ours, theirs = socket.socketpair()
    return await Control.open(ours), await Control.open(theirs)


def plan() -> EdgePlan:
    receiver = ReceiverPlan(
        name="web",
        module="receiver.http",
        options={"bind": "127.0.0.1:7071", "tokens": [SECRET]},
        interceptors=[("gzip", {}), ("lines", {"max_length": 10})],
        topic="orders.web",
    )
    return EdgePlan(
        flow="orders",
        data_dir="/tmp/data",
        process=1,
        processes=2,
        receivers=[receiver],
        stop_timeout_s=1.5,
        max_pending_bytes=1000,
        log_level="info",
        log_format="plain",
    )


@settings(max_examples=50)
@given(st.lists(st.dictionaries(st.text(), json_values), max_size=5))
def test_frames_arrive_as_they_were_sent(messages: list[dict[str, object]]) -> None:
    sent = [{**message, "type": "x"} for message in messages]

    async def scenario() -> list[object]:
        one, other = await _pair()
        for message in sent:
            one.send(message)
        one.close()
        received = []
        while (message := await other.receive()) is not None:
            received.append(message)
        other.close()
        return received

    assert asyncio.run(scenario()) == sent


def test_a_plan_survives_the_way() -> None:
    async def scenario() -> EdgePlan:
        one, other = await _pair()
        one.send({"type": "plan", "plan": plan().to_json()})
        message = await other.receive()
        one.close()
        other.close()
        assert message is not None
        return EdgePlan.from_json(message["plan"])

    assert asyncio.run(scenario()) == plan()


def test_a_plan_does_not_show_its_secrets() -> None:
    assert SECRET not in repr(plan())
    assert SECRET not in f"{plan()}"


def test_the_end_of_the_other_side_is_none() -> None:
    async def scenario() -> object:
        one, other = await _pair()
        one.close()
        try:
            return await other.receive()
        finally:
            other.close()

    assert asyncio.run(scenario()) is None


def test_sending_to_nobody_does_not_raise() -> None:
    async def scenario() -> None:
        one, other = await _pair()
        other.close()
        for _ in range(100):
            one.send({"type": "stats", "n": 1})
        await one.flush()
        assert await one.receive() is None
        one.send({"type": "stop"})
        one.close()
        one.send({"type": "stop"})

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "body",
    [
        b"\xff\xff\xff\xff",
        (3).to_bytes(4, "big") + b"{{{",
        (2).to_bytes(4, "big") + b"[]",
        (11).to_bytes(4, "big") + b'{"type": 1}',
    ],
)
def test_what_is_not_a_frame_is_refused(body: bytes) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        ours.sendall(body)
        control = await Control.open(theirs)
        try:
            await control.receive()
        finally:
            control.close()
            ours.close()

    with pytest.raises(Unavailable, match="control socket"):
        asyncio.run(scenario())


def test_half_a_frame_is_the_end() -> None:
    async def scenario() -> object:
        ours, theirs = socket.socketpair()
        ours.sendall(encode_frame({"type": "stop"})[:-1])
        ours.close()
        control = await Control.open(theirs)
        try:
            return await control.receive()
        finally:
            control.close()

    assert asyncio.run(scenario()) is None


def test_an_oversized_frame_is_not_sent() -> None:
    with pytest.raises(ValueError, match="the limit"):
        encode_frame({"type": "x", "data": "y" * CONTROL_FRAME_BYTES})
