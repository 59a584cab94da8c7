"""`Waiting` by itself, with a database that takes its time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.edge import waiting as module
from penstock.edge.waiting import Outcome, Waiting
from penstock.flow.parked import Parked
from penstock.flow.receipt import Position, Receipt
from penstock.flow.receipts import Receipts
from penstock.sinks.bits import Offsets
from penstock.status import Status
from tests.fuzz.http_door import Door

PLACE = ("t", 0)


class Slow(Receipts):
    """Reads what is there, and hands it over when told to."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, writable=True)
        self.asked = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.slow = False

    def held_between(self, topic: str, partition: int, start: int, end: int) -> Offsets:
        found = super().held_between(topic, partition, start, end)
        if self.slow:
            self.asked.release()
            assert self.go_on.acquire(timeout=30)
        return found


class Sender:
    def __init__(self, waiting: Waiting, start: int, end: int, timeout_s: float = 60.0) -> None:
        self._loop = asyncio.get_running_loop()
        self.told: asyncio.Future[Outcome | None] = self._loop.create_future()
        waiting.begin("t", [(0, start, end)], timeout_s, self.told.set_result, keep=10)

    async def counts(self) -> dict[Status, int] | None:
        outcome = await asyncio.wait_for(self.told, 30)
        return None if outcome is None else dict(outcome.counts)


@pytest.fixture
def receipts(tmp_path: Path) -> Slow:
    return Slow(tmp_path)


def run(receipts: Slow, talk: Callable[[Waiting], Awaitable[None]]) -> None:
    async def whole() -> None:
        waiting = Waiting(receipts, open=True)
        waiting.recover()
        try:
            await talk(waiting)
        finally:
            waiting.close()

    asyncio.run(whole())


def asked(receipts: Slow) -> Awaitable[bool]:
    return asyncio.to_thread(receipts.asked.acquire, timeout=30)


def test_what_changes_while_it_is_looked_up_is_looked_up_again(receipts: Slow) -> None:
    parked = np.array([0], np.int64)

    async def talk(waiting: Waiting) -> None:
        sender = Sender(waiting, 0, 1)
        receipts.settle({PLACE: 1}, [], [Parked.of("slow", "t", 0, parked)])
        receipts.slow = True
        waiting.settled({PLACE: 1}, exceptions=True)
        await asked(receipts)  # it has read that the message is parked
        receipts.unpark("slow", {PLACE: parked})
        waiting.settled({PLACE: 1}, exceptions=True)
        receipts.slow = False
        receipts.go_on.release()
        assert await sender.counts() == {Status.DONE: 1}

    run(receipts, talk)


def test_a_stop_answers_those_who_are_being_looked_up_and_those_who_come_after(
    receipts: Slow,
) -> None:
    async def talk(waiting: Waiting) -> None:
        ahead, behind = Sender(waiting, 5, 6), Sender(waiting, 0, 1)
        receipts.slow = True
        waiting.settled({PLACE: 1}, exceptions=True)
        await asked(receipts)
        waiting.give_up()
        receipts.go_on.release()
        for sender in (ahead, behind, Sender(waiting, 8, 9)):
            assert await sender.counts() is None

    run(receipts, talk)


def test_stretches_may_be_settled_in_pieces_with_and_without_exceptions(receipts: Slow) -> None:
    async def talk(waiting: Waiting) -> None:
        sender, other = Sender(waiting, 0, 10), Sender(waiting, 10, 12)
        failed = [(Position("t", 0, 3), Receipt(Status.FAILED))]
        for end, exceptions in ((2, []), (5, failed), (10, []), (12, [])):
            receipts.settle({PLACE: end}, exceptions)
            waiting.settled({PLACE: end}, exceptions=bool(exceptions))
        assert await sender.counts() == {Status.DONE: 9, Status.FAILED: 1}
        assert await other.counts() == {Status.DONE: 2}

    run(receipts, talk)


def test_what_waits_is_counted_and_what_is_over_is_forgotten(
    receipts: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    monkeypatch.setattr(module, "_COMPACT_AT", 2)

    async def talk(waiting: Waiting) -> None:
        for _ in range(20):
            senders = [Sender(waiting, number, number + 1, 0.001) for number in range(3)]
            assert waiting.full
            assert [await sender.counts() for sender in senders] == [None] * 3
            assert not waiting.full
        left = sum(len(heap) for heap in waiting._heaps.values())
        assert left <= 6

    run(receipts, talk)


def test_one_sender_too_many_is_refused_and_one_that_only_prefers_to_wait_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 0)
    sync = b"POST /?sync=true HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx"
    prefer = sync.replace(b"?sync=true", b"").replace(
        b"host: x", b"host: x\r\nprefer: respond-async, wait=9"
    )

    async def talk() -> None:
        door = Door(engine=True)
        seen = await door.talk([sync + prefer], eager=True)
        assert [code for code, _, _ in seen.answers] == [503, 202]
        assert b"too many senders wait" in seen.answers[0][2]
        assert len(seen.stored) == 1

    asyncio.run(talk())
