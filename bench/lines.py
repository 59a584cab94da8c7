"""TCP lines of 200 bytes, durable, against rsyslog's tcp-to-file without any fsync.

Both get the very same bytes from the same sender on eight connections, on the same single core.
The clock runs from the first byte sent until every line is stored: for Penstock, until a reader
in another process sees the last one as durable; for rsyslog, until its file has them all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench import machine, servers, tools
from bench.process import Failed, Server, run_load_json
from bench.suite import Row, Suite

NAME = "tcp"
CONNECTIONS = 8
MESSAGE_BYTES = 200
GOAL = 1.2
STORE_TIMEOUT_S = 60.0
POLL_S = 0.002


def run(suite: Suite) -> None:
    tools.find("rsyslogd")
    count = 400_000 if suite.quick else 3_000_000
    ratios = []
    best: dict[str, list[float]] = {"penstock": [], "rsyslog": []}
    for number, order in suite.each_round(NAME, ("penstock", "rsyslog")):
        rates = {}
        for contender in order:
            measure = _penstock if contender == "penstock" else _rsyslog
            sample = measure(suite, count)
            suite.keep(NAME, {"round": number, "server": contender, **sample})
            rates[contender] = sample["per_s"]
            best[contender].append(sample["per_s"])
        ratios.append(rates["penstock"] / rates["rsyslog"])
    ours, theirs = (sorted(best[who])[len(ratios) // 2] / 1e3 for who in ("penstock", "rsyslog"))
    note = f"{ours:.0f}k/s with fdatasync beside {theirs:.0f}k/s without"
    suite.add(Row("TCP lines, against rsyslog", "x", ratios, GOAL, note=note))


def _penstock(suite: Suite, count: int) -> dict[str, Any]:
    folder = suite.scratch(NAME)
    penstock = servers.start_penstock(folder, suite.cores.server, "receiver.tcp", "[lines]")
    with penstock.server as server, penstock.watch() as end:
        sample = _send(suite, server, penstock.port, count, end)
        suite.saw_memory(NAME, server.memory)
    suite.clear(NAME)
    return sample


def _rsyslog(suite: Suite, count: int) -> dict[str, Any]:
    folder = suite.scratch(NAME)
    server, port, out = servers.start_rsyslog(folder, suite.cores.server)
    line_bytes = MESSAGE_BYTES + 1

    def written() -> int:
        return out.stat().st_size // line_bytes if out.exists() else 0

    with server:
        sample = _send(suite, server, port, count, written)
    suite.clear(NAME)
    return sample


def _send(
    suite: Suite, server: Server, port: int, count: int, stored: Callable[[], int]
) -> dict[str, Any]:
    arguments = ["-addr", f"127.0.0.1:{port}", "-conns", str(CONNECTIONS)]
    arguments += ["-count", str(count), "-size", str(MESSAGE_BYTES), "-limit", "60s"]
    machine.warm_memory(suite.folder, suite.cores.server, count * MESSAGE_BYTES * 5 // 2)
    cpu_s = server.cpu_s()
    sent = run_load_json(tools.find("tcplines"), arguments, cpu=suite.cores.client, timeout_s=90)
    deadline = time.monotonic() + STORE_TIMEOUT_S
    while (now := stored()) < count:
        if time.monotonic() > deadline:
            raise Failed(f"{server.name} stored {now} of {count} lines in {STORE_TIMEOUT_S:.0f} s")
        time.sleep(POLL_S)
    seconds = (time.time_ns() - sent["begin_unix_ns"]) / 1e9
    cpu_s = server.cpu_s() - cpu_s
    if now != count:
        raise Failed(f"{server.name} stored {now} lines; {count} were sent")
    return {
        **sent,
        "seconds": seconds,
        "per_s": count / seconds,
        "cpu_us_per_line": cpu_s * 1e6 / count,
        "core_busy": cpu_s / seconds,
    }
