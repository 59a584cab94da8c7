"""What waits for the disk is bounded, whatever it is made of: payloads are the least of a small message."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from penstock.edge.datagrams import DatagramReceiver
from penstock.edge.intake import Intake
from penstock.errors import PenstockError
from penstock.interceptors.chain import chain_factory
from penstock.limits import KiB, MiB
from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.forwarder import Forwarder
from penstock.log.embedded.writer import PartitionWriter
from penstock.message import Batch, Source
from tests.log.contract import TOPIC, some_rows

LIMIT_BYTES = 1 * MiB
FEW = (
    LIMIT_BYTES // 100
)  # messages that surely take more than the limit, each with all that it needs


class BlockedDisk:
    """A partition whose disk takes nothing until it is told to; `fails` says what happens then."""

    def __init__(self, writer: PartitionWriter) -> None:
        self.free = threading.Event()
        self.fails = False
        self.writer = writer
        really = writer._segment.write

        def write(*given: object) -> float:
            assert self.free.wait(60)
            if self.fails:
                raise OSError(28, "no space")
            return really(*given)  # type: ignore[arg-type]

        writer._segment.write = write  # type: ignore[assignment]
        self.intake = Intake("in", str(TOPIC), 1, {0: writer}, LIMIT_BYTES)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[BlockedDisk]:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    disk = BlockedDisk(log.writer(TOPIC, 0))
    yield disk
    disk.free.set()
    disk.writer.close()


def run(disk: BlockedDisk, fill: Callable[[], Awaitable[None]]) -> None:
    async def program() -> None:
        disk.writer.start()
        disk.intake.submit(Batch("in", "~0", 0, b"x"), lambda _: None)
        await asyncio.sleep(0)  # this one is under way, the rest waits behind it
        await fill()
        disk.free.set()
        await disk.writer.drain()
        assert disk.writer.pending_bytes == 0
        assert disk.writer.pending_messages == 0
        assert not disk.intake.behind

    asyncio.run(program())


class Nobody:
    """Waits for single messages, and does not care."""

    def stored(self, seq: int, offset: int) -> None: ...

    def refused(self, seq: int, error: PenstockError) -> None: ...


def of_keys(number: int) -> Batch:
    return Batch.of("in", f"s{number}", 0, [b"", b""], keys=[b"k" * 100, None])


def of_meta(number: int) -> Batch:
    return Batch.of("in", f"s{number}", 0, [b""], meta={"of": "x" * 1000})


def of_lengths(number: int) -> Batch:
    return Batch("in", f"~{number}", 0, b"", np.zeros(1000, np.uint32))


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("make", [of_keys, of_meta, of_lengths])
def test_batches_without_payload_are_held_back_too(
    disk: BlockedDisk, make: Callable[[int], Batch], fails: bool
) -> None:
    disk.fails = fails

    async def fill() -> None:
        submitted = 0
        while not disk.intake.behind:
            # Some are repeats, of which nothing is stored: they are given back all the same.
            disk.intake.submit(make(submitted // 2), lambda _: None)
            submitted += 1
            assert submitted < FEW

    run(disk, fill)


def test_single_messages_without_payload_are_held_back_too(disk: BlockedDisk) -> None:
    async def fill() -> None:
        source, seq = Source("in", "~1"), 0
        while not disk.intake.behind:
            disk.writer.submit_one(source, seq, b"", b"{}", Nobody())
            seq += 1
            assert seq < FEW

    run(disk, fill)


def test_rows_without_payload_are_held_back_too(disk: BlockedDisk) -> None:
    async def fill() -> None:
        number = 0
        while not disk.intake.behind:
            disk.writer.submit_rows(some_rows(b""), "p", number, lambda _: None)
            number += 1
            assert number < FEW

    run(disk, fill)


def test_empty_datagrams_are_dropped_and_counted_while_the_disk_stands_still(
    disk: BlockedDisk,
) -> None:
    async def fill() -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        theirs.setblocking(False)
        receiver = DatagramReceiver(ours, disk.intake, chain_factory([], True), 1 * KiB)
        receiver.start()
        sent, counters = 0, disk.intake.counters
        while not counters.err:
            with suppress(BlockingIOError):
                theirs.send(b"")
                sent += 1
            assert sent < LIMIT_BYTES
            await asyncio.sleep(0)
        receiver.stop()
        theirs.close()
        assert counters.recv + counters.err == sent + 1

    run(disk, fill)


def test_what_waits_for_another_process_counts_as_what_waits_for_the_disk(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())

    async def program() -> None:
        forwarder = Forwarder(log.place(TOPIC, 0))  # nobody owns it
        intake = Intake("in", str(TOPIC), 1, {}, LIMIT_BYTES, others={0: forwarder})
        submitted = 0
        while not intake.behind:
            intake.submit(of_keys(submitted), lambda _: None)
            submitted += 1
            assert submitted < FEW
        await asyncio.sleep(0)
        forwarder.close()
        assert forwarder.pending_bytes == 0

    asyncio.run(program())
