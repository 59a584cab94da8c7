"""A topic to a program over `sink.connector`, beside a raw TCP copy of the same bytes.

Two Python processes, a core each. Ours: one reads the topic and writes it to the sink as one task of a batch
would, in batches as large as a flow's may be, and commits; the other is a `TwoPhaseSink` that keeps what it is sent
in its files, synced before each vote. The copy: one sends the very same frames, made before the clock starts; the
other receives them and drops them, or appends them to a file that it syncs after as many bytes as ours (the goal is
against that one: what it has is durable, as ours is). The program's own part of a commit is left out: it does
nothing here.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import machine
from bench.process import free_port
from bench.suite import Row, Suite
from bench.worker import run_worker
from penstock.config.address import Address
from penstock.connector.heads import HEAD_BYTES
from penstock.limits import BATCH_ROWS as ROUND_ROWS
from penstock.limits import MiB
from penstock.log import Reader, TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import Batch
from penstock.sdk import TwoPhaseSink
from penstock.sdk.packs import make_pack
from penstock.sinks.connections import Target
from penstock.sinks.connector import ConnectorSink
from penstock.sinks.interface import Txn

NAME = "sink"
GOAL: Final = 0.5
SIZES: Final = {200: "of 200 bytes", 2000: "of 2 000 bytes"}
BATCH_ROWS: Final = 10_000
WORKER_TIMEOUT_S: Final = 600.0
_READ_BYTES: Final = MiB


def run(suite: Suite) -> None:
    arguments = {
        "folder": str(suite.scratch(NAME)),
        "rounds": suite.rounds,
        "rows": 200_000 if suite.quick else 2_000_000,
        "cores": asdict(suite.cores),
    }
    found = run_worker(suite, NAME, "bench.sinks", arguments, WORKER_TIMEOUT_S)
    for sample in found["samples"]:
        suite.keep(NAME, sample)
    for size, label in SIZES.items():
        mine = [sample for sample in found["samples"] if sample.get("size") == size]
        middle = sorted(sample["rows"] / sample["ours_s"] for sample in mine)[len(mine) // 2]
        note = f"{middle / 1e6:.2f}M messages/s, {middle * size / 1e6:.0f} MB/s"
        name = f"topic to sink.connector, {label}, against a TCP copy"
        for peer, more, goal in (("synced", " into a synced file", GOAL), ("copy", "", None)):
            ratios = [sample[f"{peer}_s"] / sample["ours_s"] for sample in mine]
            suite.add(Row(name + more, "x", ratios, goal, note=note if goal else ""))


def _work(folder: Path, rounds: int, rows: int, cores: dict[str, int]) -> dict[str, Any]:
    samples: list[dict[str, Any]] = []
    chosen = machine.Cores(**cores)
    log = EmbeddedLog(folder / "data")
    for size in SIZES:
        count = rows * min(SIZES) // size
        topic = TopicName("default", f"of-{size}")
        _fill(log, topic, count, size)
        reader = log.reader(topic, 0)
        pack = make_pack(1, np.arange(BATCH_ROWS, dtype=np.uint64), [os.urandom(size)] * BATCH_ROWS)
        for number in range(rounds):
            print(f"  {NAME}: {SIZES[size]}, round {number + 1} of {rounds}", file=sys.stderr)
            place = folder / f"{size}-{number}"
            place.mkdir()
            sync_bytes = (size + HEAD_BYTES) * ROUND_ROWS
            ways = {
                "ours_s": partial(_ours, place, reader, count, chosen.client),
                "synced_s": partial(
                    _bare, pack.frames, count, chosen.client, place / "bare", sync_bytes
                ),
                "copy_s": partial(_bare, pack.frames, count, chosen.client, None, 0),
            }
            turn = number % len(ways)
            order = [*ways, *ways][turn : turn + len(ways)]
            sample: dict[str, Any] = {"size": size, "rows": count}
            for name in order:
                machine.warm_memory(folder, chosen.client, count * (size + HEAD_BYTES) * 3)
                sample[name] = ways[name]()
            samples.append(sample)
            shutil.rmtree(place)
        reader.close()
    return {"samples": samples}


def _fill(log: EmbeddedLog, topic: TopicName, rows: int, size: int) -> None:
    lengths = np.full(BATCH_ROWS, size, np.uint32)
    payload = np.random.default_rng(0).bytes(BATCH_ROWS * size)
    log.create(topic, TopicConfig())
    writer = log.writer(topic, 0)
    try:
        for seq in range(0, rows, BATCH_ROWS):
            writer.append([Batch("bench", "~fill", seq, payload, lengths)])
    finally:
        writer.close()


def _ours(folder: Path, reader: Reader, rows: int, core: int) -> float:
    port = free_port()

    def serve() -> None:
        TwoPhaseSink(folder / "program").listen("127.0.0.1", port)
        threading.Event().wait()

    with _process(serve, port, core):
        target = Target("out", Address("127.0.0.1", port), 30.0)
        sink = ConnectorSink(target, folder / "penstock", "v0.0.1", "", slots=1)
        _round(sink, reader, 0, 0, BATCH_ROWS)  # not timed: imports, and the folders
        begun = time.perf_counter()
        for number, start in enumerate(range(0, rows, ROUND_ROWS)):
            _round(sink, reader, number + 1, start, min(rows, start + ROUND_ROWS))
        return time.perf_counter() - begun


def _round(sink: ConnectorSink, reader: Reader, number: int, start: int, end: int) -> None:
    txn = Txn("bench", number)
    task = sink.task(txn, 0, 0)
    for batch in reader.read(start, end=end):
        task.write(batch)  # it has the columns that this sink looks at, in their types
    sink.commit(txn, [task.prepare().token])


def _bare(frames: memoryview, rows: int, core: int, into: Path | None, sync_bytes: int) -> float:
    port = free_port()

    def serve() -> None:
        with socket.create_server(("127.0.0.1", port)) as listening:
            while True:
                _receive(listening.accept()[0], into, sync_bytes)

    with _process(serve, port, core), socket.create_connection(("127.0.0.1", port)) as connection:
        begun = time.perf_counter()
        for start in range(0, rows, BATCH_ROWS):
            share = min(BATCH_ROWS, rows - start)
            connection.sendall(frames[: len(frames) * share // BATCH_ROWS])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return time.perf_counter() - begun


def _receive(connection: socket.socket, into: Path | None, sync_bytes: int) -> None:
    buffer = memoryview(bytearray(_READ_BYTES))
    unsynced = 0
    with connection, open(into or os.devnull, "wb", buffering=0) as file:
        while size := connection.recv_into(buffer):
            if into is None:
                continue
            file.write(buffer[:size])
            unsynced += size
            if unsynced >= sync_bytes:
                os.fdatasync(file.fileno())
                unsynced = 0
        if into is not None:
            os.fdatasync(file.fileno())
        connection.sendall(b".")


@contextmanager
def _process(serve: Callable[[], None], port: int, core: int) -> Iterator[None]:
    pid = os.fork()
    if not pid:
        machine.pin(core)
        try:
            serve()
        finally:
            os._exit(1)
    try:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port)) as asking:
                    asking.shutdown(socket.SHUT_WR)
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_work(Path(given.pop("folder")), **given)))
