"""NDJSON bodies of 1 000 lines of 200 bytes, durable, against the disk's own sequential write.

Two ceilings are measured beside each round, in the same folder: plain writes with an fdatasync
every 16 MiB, which is the disk at its best and what the goal is held to, and with one every so
many bytes as Penstock committed on average in that round. "A core" counts CPU time of all of
Penstock's processes, wherever it was spent; the wall clock is given too.
"""

from __future__ import annotations

from typing import Any

from bench import machine, servers, tools
from bench.machine import MiB
from bench.process import Failed, run_load_json
from bench.suite import Row, Suite

NAME = "ndjson"
CONNECTIONS = 8
MESSAGE_BYTES = 200
LINES = (1_000, 5_000)
LARGE_COMMIT_BYTES = 16 * MiB


def run(suite: Suite) -> None:
    messages = 500_000 if suite.quick else 4_000_000
    for number, order in suite.each_round(NAME, LINES):
        for lines in order:
            sample = _measure(suite, lines, messages)
            suite.keep(NAME, {"round": number, **sample})
    for lines in LINES:
        _add_rows(suite, lines)
    suite.clear(NAME)


def _measure(suite: Suite, lines: int, messages: int) -> dict[str, Any]:
    sender = tools.find("bulkpost")
    folder = suite.scratch(NAME)
    penstock = servers.start_penstock(folder / "penstock", suite.cores.server, "receiver.http")
    with penstock.server as server:
        target = ["-addr", f"127.0.0.1:{penstock.port}", "-conns", str(CONNECTIONS)]
        target += ["-lines", str(lines), "-size", str(MESSAGE_BYTES), "-limit", "120s"]

        def post(bodies: int) -> dict[str, Any]:
            arguments = [*target, "-bodies", str(bodies)]
            return run_load_json(sender, arguments, cpu=suite.cores.client, timeout_s=150)

        post(CONNECTIONS)  # warm-up: imports, first segment, buffers
        # Twice the bytes, and some: Penstock may re-pack beside it what it has just stored.
        machine.warm_memory(folder, suite.cores.server, messages * MESSAGE_BYTES * 5 // 2)
        stored, syncs, cpu_s = penstock.stored(), penstock.fsyncs(), server.cpu_s()
        found = post(messages // lines)
        cpu_s = server.cpu_s() - cpu_s
        syncs = penstock.fsyncs() - syncs
        stored = penstock.stored() - stored
        suite.saw_memory(NAME, server.memory)
    if stored != found["messages"]:
        raise Failed(f"{found['messages']} messages were accepted and {stored} are stored")
    suite.clear(NAME)
    folder = suite.scratch(NAME)
    total_bytes = min(found["payload_bytes"], 1024 * MiB)
    commit_bytes = max(1, found["payload_bytes"] // max(1, syncs))
    return {
        "lines": lines,
        **found,
        "messages_per_s": stored / found["seconds"],
        "messages_per_core_s": stored / cpu_s,
        "bytes_per_s": found["payload_bytes"] / found["seconds"],
        "core_busy": cpu_s / found["seconds"],
        "fsyncs": syncs,
        "bytes_per_commit": commit_bytes if syncs else None,
        "disk_large_bytes_per_s": machine.raw_write(
            folder, suite.cores, LARGE_COMMIT_BYTES, total_bytes
        ),
        "disk_same_bytes_per_s": machine.raw_write(folder, suite.cores, commit_bytes, total_bytes)
        if syncs
        else None,
    }


def _add_rows(suite: Suite, lines: int) -> None:
    samples = [sample for sample in suite.raw[NAME] if sample.get("lines") == lines]
    first = lines == LINES[0]  # the goals are for bodies of 1 000 lines; the other is beside it
    name = f"NDJSON, bodies of {lines} lines"

    def middle(field: str) -> float:
        return sorted(float(sample[field]) for sample in samples)[len(samples) // 2]

    speed, disk = middle("bytes_per_s") / 1e6, middle("disk_large_bytes_per_s") / 1e6
    suite.add(
        Row(
            f"{name}, messages a second of CPU",
            "M/s",
            [sample["messages_per_core_s"] / 1e6 for sample in samples],
            1.0 if first else None,
            note=f"{middle('messages_per_s') / 1e6:.2f}M/s by the clock",
        )
    )
    suite.add(
        Row(
            f"{name}, against the disk, 16 MiB commits",
            "x",
            [sample["bytes_per_s"] / sample["disk_large_bytes_per_s"] for sample in samples],
            0.4 if first else None,
            note=f"{speed:.0f} MB/s beside {disk:.0f} MB/s",
        )
    )
    same = [sample for sample in samples if sample["disk_same_bytes_per_s"]]
    if same:
        kib = middle("bytes_per_commit") / 1024
        suite.add(
            Row(
                f"{name}, against the disk, our commits",
                "x",
                [sample["bytes_per_s"] / sample["disk_same_bytes_per_s"] for sample in same],
                note=f"commits of {kib:.0f} KiB on average",
            )
        )
    else:
        suite.add(Row(f"{name}, against the disk, our commits", "x", [], missing="no fsync metric"))
