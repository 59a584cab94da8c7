"""Durable POSTs of 200 bytes on 64 and on 256 connections, one message a request.

Beside Penstock: nginx, which answers 200 and stores nothing (the ceiling of a very good HTTP
server), and a Go net/http server with the same group commit (what one would otherwise write). All
three run all the time on the same core; only one has load at a time.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import Any

from bench import servers, tools
from bench.process import Failed, Server, run_load
from bench.suite import Row, Suite
from bench.tools import Program

NAME = "http"
CONNECTIONS = (64, 256)
GOALS = {("nginx", 64): 0.4, ("nginx", 256): 0.5, ("gocommit", 64): 1.8, ("gocommit", 256): 1.8}
MESSAGE_BYTES = 200


def run(suite: Suite) -> None:
    folder = suite.scratch(NAME)
    wrk = tools.find("wrk")
    seconds = 2 if suite.quick else 5
    with ExitStack() as stack:
        penstock = servers.start_penstock(folder / "penstock", suite.cores.server, "receiver.http")
        contenders = [(stack.enter_context(penstock.server), penstock.port)]
        absent: dict[str, str] = {}
        for name, start in (("nginx", servers.start_nginx), ("gocommit", servers.start_gocommit)):
            try:
                server, port = start(folder / name, suite.cores.server)
            except (tools.Missing, Failed) as error:
                absent[name] = str(error)
            else:
                contenders.append((stack.enter_context(server), port))
        for server, port in contenders:
            _measure(suite, wrk, server, port, CONNECTIONS[0], 1)
        accepted_before = penstock.stored()
        accepted = _rounds(suite, wrk, contenders, seconds)
        stored = penstock.stored() - accepted_before
        suite.saw_memory(NAME, penstock.server.memory)
    # wrk leaves requests unanswered when its time is up, so more may be stored than it counted.
    if stored < accepted:
        raise Failed(f"{accepted} POSTs were answered 202, but only {stored} messages are stored")
    for peer in ("nginx", "gocommit"):
        for connections in CONNECTIONS:
            suite.add(_row(suite, peer, connections, absent.get(peer, "")))
    suite.clear(NAME)


def _rounds(suite: Suite, wrk: Program, contenders: list[tuple[Server, int]], seconds: int) -> int:
    accepted = 0
    for number, order in suite.each_round(NAME, contenders):
        for connections in CONNECTIONS:
            for server, port in order:
                sample = _measure(suite, wrk, server, port, connections, seconds)
                suite.keep(NAME, {"round": number, **sample})
                if server.name == "penstock":
                    accepted += sample["requests"]
    return accepted


def _measure(
    suite: Suite, wrk: Program, server: Server, port: int, connections: int, seconds: int
) -> dict[str, Any]:
    arguments = ["-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "10s"]
    arguments += ["-s", str(tools.PEERS / "post.lua"), f"http://127.0.0.1:{port}/"]
    cpu_before = server.cpu_s()
    printed = run_load(wrk, arguments, cpu=suite.cores.client, timeout_s=seconds + 30)
    cpu_s = server.cpu_s() - cpu_before
    found: dict[str, Any] = json.loads(printed.rpartition("JSON ")[2])
    bad = {name: found[name] for name in ("bad_status", "connect", "read", "write", "timeout")}
    if any(bad.values()) or not found["requests"]:
        raise Failed(f"{server.name} on {connections} connections: {found['requests']} {bad}")
    return {
        "server": server.name,
        "connections": connections,
        **found,
        "per_s": found["requests"] / found["seconds"],
        "cpu_us_per_request": cpu_s * 1e6 / found["requests"],
        "core_busy": cpu_s / found["seconds"],
    }


def _row(suite: Suite, peer: str, connections: int, missing: str) -> Row:
    name = f"durable POSTs, {connections} connections, against {peer}"
    goal = GOALS[peer, connections]
    if missing:
        return Row(name, "x", [], goal, missing=missing)
    rates: dict[tuple[str, int], float] = {}
    for sample in suite.raw[NAME]:
        if sample.get("connections") == connections:
            rates[sample["server"], sample["round"]] = sample["per_s"]
    ratios = [rates["penstock", n] / rates[peer, n] for n in range(suite.rounds)]
    ours = sorted(rates["penstock", n] for n in range(suite.rounds))[suite.rounds // 2]
    theirs = sorted(rates[peer, n] for n in range(suite.rounds))[suite.rounds // 2]
    return Row(name, "x", ratios, goal, note=f"{ours / 1e3:.1f}k/s beside {theirs / 1e3:.1f}k/s")
