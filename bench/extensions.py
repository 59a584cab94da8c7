"""A source of the SDK into a topic, against a raw TCP copy of the same bytes.

Ours: one Python process writes messages with `SourceExtension.write_many`; the edge stores them. The clock runs from the
first write until everything is acknowledged, and so durable. The copy: one Python process sends the very same
frames, made before the clock starts, with `sendall`; another reads them with `recv_into` and says when it has them
all. That one does nothing with them, or appends them to a file and syncs it every 16 MiB. The goal is against the
latter: a topic is on the disk, and a copy that is nowhere is faster than the disk is.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import numpy as np

from bench import machine, servers
from bench.process import Failed, Server, free_port, on_core
from bench.suite import Row, Suite
from bench.tools import HERE
from penstock.sdk import SourceExtension
from penstock.sdk.packs import make_pack

NAME = "source"
GOAL = 0.5
SIZES = (200, 2_000, 20_000)
TOTAL_BYTES = 1_000_000_000
QUICK_BYTES = 100_000_000
PIECE_BYTES = 1 << 20  # what is written at a time
SYNC_BYTES = 16 << 20
TIMEOUT_S = 120.0
CONTENDERS = ("penstock", "copy", "copy_synced")


def run(suite: Suite) -> None:
    total_bytes = QUICK_BYTES if suite.quick else TOTAL_BYTES
    for size in SIZES:
        ratios: dict[str, list[float]] = {"copy": [], "copy_synced": []}
        rates: list[float] = []
        for number, order in suite.each_round(NAME, CONTENDERS):
            bytes_per_s = {}
            for contender in order:
                sample = _measure(suite, contender, size, total_bytes)
                suite.keep(NAME, {"round": number, "server": contender, "size": size, **sample})
                bytes_per_s[contender] = sample["bytes_per_s"]
            for peer, found in ratios.items():
                found.append(bytes_per_s["penstock"] / bytes_per_s[peer])
            rates.append(bytes_per_s["penstock"])
        middle = sorted(rates)[len(rates) // 2]
        note = f"{middle / (size + 31) / 1e3:.0f}k messages/s, {middle / 1e6:.0f} MB/s"
        name = f"source to topic, {size} bytes, against a TCP copy"
        suite.add(Row(f"{name} into a synced file", "x", ratios["copy_synced"], GOAL, note=note))
        suite.add(Row(name, "x", ratios["copy"]))


def _measure(suite: Suite, contender: str, size: int, total_bytes: int) -> dict[str, Any]:
    folder = suite.scratch(NAME)
    count = total_bytes // (size + 31)
    if contender == "penstock":
        penstock = servers.start_penstock(folder, suite.cores.server, "receiver.connector")
        with penstock.server as server:
            sample = _load(suite, "sdk", penstock.port, size, count)
            if (stored := penstock.stored()) != count:
                raise Failed(f"{stored} messages are stored; {count} were acknowledged")
            suite.saw_memory(NAME, server.memory)
    else:
        port = free_port()
        into = str(folder / "copy") if contender == "copy_synced" else ""
        command = [sys.executable, "-m", "bench.extensions", "copy", str(port), into]
        with Server(contender, command, cpu=suite.cores.server, log=folder / "log") as server:
            server.wait_until_printed("ready")
            sample = _load(suite, "raw", port, size, count)
    suite.clear(NAME)
    return sample


def _load(suite: Suite, how: str, port: int, size: int, count: int) -> dict[str, Any]:
    # Not before the server has started: what is free for a second or two may be the host's again.
    machine.warm_memory(suite.folder, suite.cores.server, count * (size + 31) * 5 // 2)
    command = [sys.executable, "-m", "bench.extensions", how, str(port), str(size), str(count)]
    try:
        done = subprocess.run(
            on_core(suite.cores.client, command),
            cwd=HERE.parent,
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"the source did not end in {TIMEOUT_S:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"the source ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


# --- The programs that are measured ----------------------------------------------------------------


def _messages(size: int, count: int) -> list[bytes]:
    filler = os.urandom(size)
    return [b"%010d" % number + filler[10:] for number in range(min(count, PIECE_BYTES // size))]


def _sdk(port: int, size: int, count: int) -> float:
    piece = _messages(size, count)
    source = SourceExtension().connect("127.0.0.1", port)
    source.point_of_reference()
    begun = time.perf_counter()
    left = count
    while left:
        source.write_many(piece if left >= len(piece) else piece[:left])
        left -= min(left, len(piece))
    source.flush()
    seconds = time.perf_counter() - begun
    source.close()
    return seconds


def _raw(port: int, size: int, count: int) -> float:
    piece = _messages(size, count)
    pack = make_pack(1, np.arange(len(piece), dtype=np.uint64), piece)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        begun = time.perf_counter()
        left = count
        while left:
            frames = pack.frames if left >= len(piece) else pack.cut(left)[0].frames
            sock.sendall(frames)
            left -= min(left, len(piece))
        sock.shutdown(socket.SHUT_WR)
        if sock.recv(1) != b"k":
            raise Failed("the copy did not arrive")
        return time.perf_counter() - begun


def _copy(port: int, into: str) -> None:
    """Take one connection, read all of it, say so."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    file = os.open(into, os.O_CREAT | os.O_WRONLY, 0o600) if into else None
    unsynced = 0
    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready", flush=True)
        sock, _ = server.accept()
        with sock:
            while read := sock.recv_into(buffer):
                if file is not None:
                    os.write(file, buffer[:read])
                    unsynced += read
                    if unsynced >= SYNC_BYTES:
                        os.fdatasync(file)
                        unsynced = 0
            if file is not None:
                os.fdatasync(file)
            sock.sendall(b"k")


def _main(how: str, port: str, *more: str) -> None:
    if how == "copy":
        _copy(int(port), more[0])
        return
    size, count = map(int, more)
    seconds = (_sdk if how == "sdk" else _raw)(int(port), size, count)
    sent_bytes = count * (size + 31)
    found = {"seconds": seconds, "per_s": count / seconds, "bytes_per_s": sent_bytes / seconds}
    print(json.dumps(found))


if __name__ == "__main__":
    _main(*sys.argv[1:])
