"""Reading a topic from beginning to end into Arrow, in rows a second.

Three topics of 200-byte messages: appended in batches of 10 000, in batches of 1 000, and one
message at a time, each with a commit of its own; the last is read before and after re-packing.
The reader checks every byte against its checksum; on top, each pass sums the `offset` column and
adds up the sizes of the payloads, and compares both with what was written. The files are in the
page cache. The ceiling beside it is XXH3-64 over the same files, mapped: what the checksum alone
costs.
"""

from __future__ import annotations

import json
import mmap
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from bench import machine
from bench.process import Failed
from bench.suite import Row, Suite
from bench.worker import run_worker
from penstock.limits import SEGMENT_FRAMES, MiB
from penstock.log import Reader, TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import Batch

NAME = "read"
MESSAGE_BYTES = 200
GOAL_ROWS_PER_S = 20e6
WORKER_TIMEOUT_S = 1200.0
MEMORY_DISK = Path("/dev/shm")
SLICE_BYTES = 1 * MiB
SINGLE_ROWS = 20_000

LARGE, SMALL, SINGLE = "batches of 10 000", "batches of 1 000", "one at a time"
PACKED = "one at a time, re-packed"
GOALS = {LARGE: GOAL_ROWS_PER_S / 1e6, PACKED: GOAL_ROWS_PER_S / 1e6}


def run(suite: Suite) -> None:
    folder = suite.scratch(NAME)
    arguments = {
        "folder": str(folder),
        "rounds": suite.rounds,
        "rows": 1_000_000 if suite.quick else 4_000_000,
        "single_segments": 1 if suite.quick else 4,
        "pass_s": 0.3 if suite.quick else 1.0,
        "cores": asdict(suite.cores),
    }
    found = run_worker(suite, NAME, "bench.reads", arguments, WORKER_TIMEOUT_S)
    for sample in found["samples"]:
        suite.keep(NAME, sample)
    for topic in (LARGE, SMALL, SINGLE, PACKED):
        mine = [sample for sample in found["samples"] if sample.get("topic") == topic]
        rows = [sample["rows_per_s"] / 1e6 for sample in mine]
        share = sorted(s["rows_per_s"] / s["ceiling_rows_per_s"] for s in mine)[len(mine) // 2]
        note = f"{share:.2f}x of hashing the same bytes"
        suite.add(Row(f"read, {topic}", "M rows/s", rows, GOALS.get(topic), note=note))


def _work(folder: Path, rounds: int, rows: int, single_segments: int, pass_s: float,
          cores: dict[str, int]) -> dict[str, Any]:  # fmt: skip
    log = EmbeddedLog(folder / "data")
    _say("writing the topics")
    ends = {
        LARGE: _fill(log, LARGE, rows, 10_000),
        SMALL: _fill(log, SMALL, rows, 1_000),
        SINGLE: _fill_singles(folder, log, single_segments * SEGMENT_FRAMES),
    }
    samples: list[dict[str, Any]] = []
    # Unpacked single messages are read slowly; some of them show how slowly.
    before = {**ends, SINGLE: min(ends[SINGLE], SINGLE_ROWS)}
    _passes(log, samples, before, rounds, pass_s, folder, machine.Cores(**cores))
    _say("re-packing")
    begun = time.perf_counter()
    log.maintain(_topic(SINGLE))
    samples.append({"repack_rows_per_s": ends[SINGLE] / (time.perf_counter() - begun)})
    info = log.describe(_topic(SINGLE)).partitions[0]
    if info.packed_segments < single_segments:
        raise Failed(f"{info.packed_segments} of {info.segments} segments were re-packed")
    packed = {PACKED: ends[SINGLE]}
    _passes(log, samples, packed, rounds, pass_s, folder, machine.Cores(**cores))
    log.close()
    return {"samples": samples}


def _topic(label: str) -> TopicName:
    """Topics are named for how they were written; the re-packed one is the same topic."""
    name = {LARGE: "large", SMALL: "small", SINGLE: "single", PACKED: "single"}[label]
    return TopicName("default", name)


def _fill(log: EmbeddedLog, label: str, rows: int, batch_rows: int) -> int:
    payload = bytes(MESSAGE_BYTES) * batch_rows
    lengths = np.full(batch_rows, MESSAGE_BYTES, np.uint32)
    log.create(_topic(label), TopicConfig())
    writer = log.writer(_topic(label), 0)
    try:
        for seq in range(0, rows, batch_rows):
            writer.append([Batch("bench", "~fill", seq, payload, lengths)])
    finally:
        writer.close()
    return rows


def _fill_singles(folder: Path, log: EmbeddedLog, rows: int) -> int:
    """One commit a message. Written in memory and then copied: the files are the same ones that a
    disk would get, without waiting for hundreds of thousands of syncs."""
    in_memory = MEMORY_DISK / f"penstock-bench-{folder.name}-{time.time_ns()}"
    payload = bytes(MESSAGE_BYTES)
    use_memory = MEMORY_DISK.is_dir() and shutil.disk_usage(MEMORY_DISK).free > 2048 * MiB
    home = EmbeddedLog(in_memory) if use_memory else log
    try:
        home.create(_topic(SINGLE), TopicConfig())
        writer = home.writer(_topic(SINGLE), 0)
        # One more than fills the last segment, so that it is sealed and can be re-packed.
        for seq in range(rows + 1):
            writer.append([Batch("bench", "~fill", seq, payload)])
        writer.close()
        if use_memory:
            home.close()
            shutil.copytree(in_memory, folder / "data", dirs_exist_ok=True)
    finally:
        shutil.rmtree(in_memory, ignore_errors=True)
    return rows


def _passes(log: EmbeddedLog, samples: list[dict[str, Any]], ends: dict[str, int], rounds: int,
            pass_s: float, folder: Path, cores: machine.Cores) -> None:  # fmt: skip
    for number in range(rounds):
        _say(f"round {number + 1} of {rounds}: {', '.join(ends)}")
        samples.append({"round": number, "probe": machine.probe(folder, cores)})
        for label, end in ends.items():
            reader = log.reader(_topic(label), 0)
            try:
                rows_per_s = _read(reader, end, pass_s)
                ceiling = _hash_rate(folder, label, pass_s, reader.end())
            finally:
                reader.close()
            samples.append({"round": number, "topic": label, "rows": end,
                            "rows_per_s": rows_per_s, **ceiling})  # fmt: skip


def _read(reader: Reader, end: int, pass_s: float) -> float:
    """Whole passes until the time is up; every one must add up."""
    passes, begun = 0, time.perf_counter()
    while not passes or time.perf_counter() - begun < pass_s:
        total = payload_bytes = 0
        for batch in reader.read(0, end=end):
            total += pc.sum(batch.column("offset")).as_py()
            payload_bytes += _payload_bytes(batch)
        if total != end * (end - 1) // 2 or payload_bytes != end * MESSAGE_BYTES:
            raise Failed(f"a pass over {end} rows gave offsets adding up to {total} and "
                         f"{payload_bytes} bytes of payload")  # fmt: skip
        passes += 1
    return passes * end / (time.perf_counter() - begun)


def _payload_bytes(batch: pa.RecordBatch) -> int:
    column = batch.column("payload")
    starts = np.frombuffer(memoryview(column.buffers()[1]), np.int32)
    return int(starts[column.offset + len(column)] - starts[column.offset])


def _hash_rate(folder: Path, label: str, pass_s: float, rows: int) -> dict[str, float]:
    name = _topic(label)
    files = sorted((folder / "data" / "topics" / name.namespace / name.topic).glob("*/*.seg"))
    passes = size = 0
    begun = time.perf_counter()
    while not passes or time.perf_counter() - begun < pass_s:
        for path in files:
            if not (length := path.stat().st_size):
                continue
            with (
                path.open("rb") as opened,
                mmap.mmap(opened.fileno(), length, prot=mmap.PROT_READ) as mapped,
                memoryview(mapped) as view,
            ):
                for at in range(0, length, SLICE_BYTES):
                    xxhash.xxh3_64_intdigest(view[at : at + SLICE_BYTES])
                size += length
        passes += 1
    seconds = time.perf_counter() - begun
    return {
        "ceiling_rows_per_s": passes * rows / seconds,
        "ceiling_bytes_per_s": size / seconds,
        "bytes_per_row": size / passes / rows,
    }


def _say(text: str) -> None:
    print(f"  {NAME}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_work(Path(given.pop("folder")), **given)))
