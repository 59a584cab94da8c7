"""Does a message cost more when a hundred million lie before it?

One topic grows by durable appends of messages of 100 bytes. At 1, 3, 10, 30 and 100 million there
is a window in which appends of 1 000 messages go to it and to a fresh topic in turns, so that what
the machine does in that minute falls on both; between the windows appends are of 10 000, to get there
sooner. A window's number is the median of large over fresh, and the benchmark's the highest of
all windows. Sixteen numbered streams take turns, so that what the log remembers about senders is at
work too. Re-packing does not run.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import machine, tools
from bench.process import memory
from bench.suite import Row, Suite
from bench.worker import run_worker
from penstock.log import TopicConfig, Writer
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import Batch

NAME = "growth"
MESSAGE_BYTES = 100
GROWING_BATCH_ROWS = 10_000
WINDOW_BATCH_ROWS = 1_000
CHUNK_ROWS = 100_000
STREAMS = 16
MARKS = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
PAIRS = 15
GOAL = 1.1
STORED_BYTES = 160  # a message with its share of the frames; generous, for the check of free space
SPARE_BYTES = 4_000_000_000
WORKER_TIMEOUT_S = 3600.0

GROWING = TopicName("default", "growing")


def run(suite: Suite) -> None:
    need = suite.growth_max * STORED_BYTES + SPARE_BYTES
    free = shutil.disk_usage(suite.folder).free
    if free < need:
        raise tools.Missing(
            f"{suite.growth_max} messages need {need / 1e9:.0f} GB and {free / 1e9:.0f} GB are "
            f"free at {suite.folder}: lower --growth-max, or choose another disk with --dir"
        )
    folder = suite.scratch(NAME)
    arguments = {
        "folder": str(folder),
        "growth_max": suite.growth_max,
        "cpu": suite.cores.server,
    }
    found = run_worker(suite, NAME, "bench.growth", arguments, WORKER_TIMEOUT_S)
    suite.keep(NAME, found)
    windows = found["windows"]
    first, last = windows[0], windows[-1]
    span = f"{first['size'] / 1e6:g}M to {last['size'] / 1e6:g}M messages"
    short = "" if last["size"] >= MARKS[-1] else f"; the goal is for {MARKS[-1] / 1e6:g}M"
    for kind in ("cpu", "wall"):
        ratios = [window[f"{kind}_ratio"] for window in windows]
        note = f"{first[f'{kind}_us']:.2f} then {last[f'{kind}_us']:.2f} µs a message{short}"
        name = f"cost a message, {kind}, {span}"
        suite.add(Row(name, "x", ratios, GOAL, at_most=True, worst=True, note=note))
    kept = [w["memory"]["anonymous_mb"] / first["memory"]["anonymous_mb"] for w in windows]
    suite.add(Row(f"memory of the writer, {span}", "x", kept, at_most=True, worst=True))
    opens = [window["open_s"] * 1e3 for window in windows]
    note = f"{opens[0]:.0f} ms then {opens[-1]:.0f} ms"
    suite.add(Row("opening the topic to write", "ms", opens, at_most=True, worst=True, note=note))


class _Feed:
    """Appends chunks to one topic; the streams take turns, each with its own numbers."""

    def __init__(self, log: EmbeddedLog, topic: TopicName) -> None:
        self.log = log
        self.topic = topic
        self.size = 0
        self._seqs = [0] * STREAMS
        self._turn = 0
        log.create(topic, TopicConfig())
        self.writer: Writer = log.writer(topic, 0)

    def reopen(self) -> float:
        """Seconds to take the topic over, as after a restart."""
        self.writer.close()
        begun = time.perf_counter()
        self.writer = self.log.writer(self.topic, 0)
        return time.perf_counter() - begun

    def chunk(self, batch_rows: int) -> tuple[float, float]:
        """CPU and wall microseconds a message."""
        payload = b"g" * (MESSAGE_BYTES * batch_rows)
        lengths = np.full(batch_rows, MESSAGE_BYTES, np.uint32)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(CHUNK_ROWS // batch_rows):
            stream = self._turn % STREAMS
            self.writer.append(
                [Batch("bench", f"sender-{stream}", self._seqs[stream], payload, lengths)]
            )
            self._seqs[stream] += batch_rows
            self._turn += 1
        self.size += CHUNK_ROWS
        per_message = 1e6 / CHUNK_ROWS
        return (time.process_time() - cpu) * per_message, (time.perf_counter() - wall) * per_message


def _work(folder: Path, growth_max: int, cpu: int) -> dict[str, Any]:
    log = EmbeddedLog(folder)
    growing = _Feed(log, GROWING)
    costs: list[tuple[int, float, float]] = []
    windows = []
    for mark in (mark for mark in MARKS if mark <= growth_max):
        _say(f"growing to {mark / 1e6:g}M messages")
        while growing.size < mark:
            costs.append((growing.size, *growing.chunk(GROWING_BATCH_ROWS)))
        windows.append(_window(folder, log, growing, mark, cpu))
    growing.writer.close()
    size_bytes = log.describe(GROWING).partitions[0].size_bytes
    log.close()
    return {"windows": windows, "costs": costs, "bytes_per_message": size_bytes / growing.size}


def _window(folder: Path, log: EmbeddedLog, growing: _Feed, mark: int, cpu: int) -> dict[str, Any]:
    open_s = growing.reopen()
    machine.warm_memory(folder, cpu, 5 * PAIRS * CHUNK_ROWS * MESSAGE_BYTES)
    fresh = _Feed(log, TopicName("default", f"fresh-{mark}"))
    pairs = []
    for number in range(PAIRS + 1):
        if number % 2:
            mine, other = growing.chunk(WINDOW_BATCH_ROWS), fresh.chunk(WINDOW_BATCH_ROWS)
        else:
            other, mine = fresh.chunk(WINDOW_BATCH_ROWS), growing.chunk(WINDOW_BATCH_ROWS)
        if number:  # the first pair warms both up
            pairs.append((*mine, *other))
    fresh.writer.close()
    log.delete(fresh.topic)
    middle = [statistics.median(column) for column in zip(*pairs, strict=True)]
    return {
        "size": mark,
        "open_s": open_s,
        "cpu_us": middle[0],
        "wall_us": middle[1],
        "fresh_cpu_us": middle[2],
        "fresh_wall_us": middle[3],
        "cpu_ratio": statistics.median(pair[0] / pair[2] for pair in pairs),
        "wall_ratio": statistics.median(pair[1] / pair[3] for pair in pairs),
        "pairs": pairs,
        "memory": memory(os.getpid()),
    }


def _say(text: str) -> None:
    print(f"  {NAME}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_work(Path(given["folder"]), given["growth_max"], given["cpu"])))
