"""UDP datagrams of 200 bytes at 150 thousand a second: every one must be stored.

The sender is paced and counts what the kernel took from it; loss is what was sent and is not in
the topic once that has stopped growing. After the rounds the rate is raised step by step until
something is lost, or until the sender itself cannot go faster.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench import machine, servers, tools
from bench.process import Failed, run_load_json
from bench.servers import Penstock
from bench.suite import Row, Suite

NAME = "udp"
MESSAGE_BYTES = 200
SENDERS = 4
RATE_PER_S = 150_000
RAMP_PER_S = tuple(range(200_000, 1_000_001, 50_000))
RATE_TOLERANCE = 0.98  # a sender slower than this did not offer the rate that it was asked for
SETTLE_S = 1.0
SETTLE_TIMEOUT_S = 30.0


def run(suite: Suite) -> None:
    tools.find("datagrams")
    seconds = 2.0 if suite.quick else 5.0
    shares, offered = [], []
    for number, _ in suite.each_round(NAME, ("penstock",)):
        sample = _measure(suite, RATE_PER_S, seconds)
        suite.keep(NAME, {"round": number, **sample})
        shares.append(sample["stored"] / sample["sent"])
        offered.append(sample["rate_per_s"])
    lost = sum(s["lost"] for s in suite.raw[NAME] if "lost" in s)
    slow = min(offered) < RATE_TOLERANCE * RATE_PER_S
    suite.add(
        Row(
            "UDP at 150k/s, share stored",
            "of 1",
            shares,
            1.0,
            worst=True,
            note=f"{lost} lost; offered {min(offered) / 1e3:.0f}k/s at least",
            missing="the sender was too slow to offer the rate" if slow else "",
        )
    )
    suite.add(_ramp(suite, 1.0 if suite.quick else 3.0, 0.0 if lost else min(offered)))


def _ramp(suite: Suite, seconds: float, highest: float) -> Row:
    ended = "the last step"
    for rate in RAMP_PER_S:
        sample = _measure(suite, rate, seconds)
        suite.keep(NAME, {"ramp": rate, **sample})
        offered = sample["rate_per_s"]
        if sample["lost"]:
            share = 100 * sample["lost"] / sample["sent"]
            ended = f"at {offered / 1e3:.0f}k/s {share:.2f} % was lost"
            break
        highest = max(highest, offered)
        if offered < RATE_TOLERANCE * rate:
            ended = "the sender cannot go faster"
            break
    return Row("UDP, highest rate without loss", "k/s", [highest / 1e3], note=ended)


def _measure(suite: Suite, rate: int, seconds: float) -> dict[str, Any]:
    folder = suite.scratch(NAME)
    penstock = servers.start_penstock(folder, suite.cores.server, "receiver.udp")
    arguments = ["-addr", f"127.0.0.1:{penstock.port}", "-senders", str(SENDERS)]
    arguments += ["-rate", str(rate), "-seconds", str(seconds), "-size", str(MESSAGE_BYTES)]
    with penstock.server as server:
        warm_bytes = int(rate * seconds) * MESSAGE_BYTES * 5 // 2
        machine.warm_memory(suite.folder, suite.cores.server, warm_bytes)
        cpu_s, overflows = server.cpu_s(), _overflows()
        sent = run_load_json(
            tools.find("datagrams"), arguments, cpu=suite.cores.client, timeout_s=seconds + 30
        )
        stored = _settled(penstock, sent["sent"])
        cpu_s = server.cpu_s() - cpu_s
        suite.saw_memory(NAME, server.memory)
    suite.clear(NAME)
    if stored > sent["sent"]:
        raise Failed(f"{sent['sent']} datagrams were sent and {stored} are stored")
    return {
        **sent,
        "asked_per_s": rate,
        "stored": stored,
        "lost": sent["sent"] - stored,
        "socket_buffer_overflows": _overflows() - overflows,
        "cpu_us_per_datagram": cpu_s * 1e6 / max(1, stored),
    }


def _overflows() -> int:
    """Datagrams that the kernel has dropped because a socket's buffer was full, since it started."""
    names, values = (
        line.split() for line in Path("/proc/net/snmp").read_text().splitlines() if "Udp:" in line
    )
    return int(values[names.index("RcvbufErrors")])


def _settled(penstock: Penstock, sent: int) -> int:
    """What is stored once nothing has been added for a while."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    with penstock.watch() as end:
        last, since = end(), time.monotonic()
        while last < sent and time.monotonic() - since < SETTLE_S and time.monotonic() < deadline:
            time.sleep(0.01)
            if (now := end()) != last:
                last, since = now, time.monotonic()
        return last
