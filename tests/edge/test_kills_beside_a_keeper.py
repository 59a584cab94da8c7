"""Kills of the edge and of the keeper while segments are small: TCP lines that were answered are there."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from tests.edge.conftest import Edge

Start = Callable[..., Edge]
ROUNDS = 8
SMALL = TopicConfig(segment_bytes=64 * 1024, segment_age_s=0.2, compression="lz4")
KEEP = (
    "import sys, time; from penstock.log import TopicName; from penstock.log.embedded import EmbeddedLog\n"
    "log = EmbeddedLog(sys.argv[1])\n"
    "while True:\n    log.maintain(TopicName.parse('t'))\n    time.sleep(0.01)"
)


def line(sender: str, number: int) -> bytes:
    """Says what it must be, and of varying size, so that a torn message shows."""
    size = (number * 7919) % 900
    return f"{sender}:{number}:{size}:".encode() + b"x" * size


class Talker(threading.Thread):
    """Sends lines, some at a time, and counts those that were answered."""

    def __init__(self, edge: Edge, name: str) -> None:
        super().__init__()
        self.address = edge.host_port
        self.sender = name
        self.answered = 0

    def run(self) -> None:
        number = 0
        try:
            with socket.create_connection(self.address, timeout=30) as sock:
                answers = sock.makefile("rb")
                while True:
                    some = range(number, number + 1 + number % 7)
                    sock.sendall(b"".join(line(self.sender, each) + b"\n" for each in some))
                    for each in some:
                        status, _, event = answers.readline().partition(b" ")
                        if not event.endswith(b"\n"):
                            return
                        assert status == b"new"
                        assert int(event.rpartition(b"/")[2]) == each, "answers are in order"
                        self.answered += 1
                    number = some.stop
        except OSError:
            return


@pytest.mark.slow
def test_answered_lines_survive_kills_of_the_edge_and_the_keeper(
    edge: Start, tmp_path: Path
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    EmbeddedLog(tmp_path).create(TopicName.parse("t"), SMALL)
    tcp = edge(
        "receiver.tcp",
        {"bind": "127.0.0.1:0", "reply": "status"},
        interceptors=[("lines", {})],
        made=True,
    )
    answered: dict[str, int] = {}
    for turn in range(ROUNDS):
        keeper = subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)])
        talkers = [Talker(tcp, f"t{turn}-{number}") for number in range(4)]
        for talker in talkers:
            talker.start()
        threading.Event().wait(chance.uniform(0.3, 0.8))
        first, second = chance.sample([keeper.kill, tcp.kill], 2)
        first()
        threading.Event().wait(chance.uniform(0.0, 0.05))
        second()
        keeper.wait()
        for talker in talkers:
            talker.join()
            answered[talker.sender] = talker.answered
        tcp.start()

    tcp.log.maintain(tcp.topic)
    assert tcp.log.verify(tcp.topic).corrupt == ()
    [partition] = tcp.log.describe(tcp.topic).partitions
    assert partition.packed_segments > ROUNDS, "there was something to pack"
    next_number = dict.fromkeys(answered, 0)
    for payload in tcp.payloads():
        sender, number = payload.decode().split(":")[:2]
        assert payload == line(sender, int(number)), f"torn: {payload[:50]!r}"
        assert int(number) == next_number[sender], "out of order, twice, or a gap"
        next_number[sender] += 1
    for sender, count in answered.items():
        assert next_number[sender] >= count, "an answered line is missing"
    assert sum(answered.values()) > ROUNDS
