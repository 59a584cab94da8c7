"""A source that was written for the protocol, and not for us, on its less usual ways."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.edge import field_program
from tests.edge.conftest import Edge
from tests.edge.field_program import FieldProgram
from tools.services import free_port

Start = Callable[..., Edge]
COUNT = 2000
CREDITS = 10  # so that it is still at it when the edge stops


def seqs(*edges: Edge) -> list[int]:
    return [seq for edge in edges for seq in edge.table()["seq"].to_pylist()]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_it_goes_where_restart_sends_it_and_stores_everything_once(
    tmp_path: Path, elsewhere: bool
) -> None:
    ports = [free_port(), free_port()]
    there = {"restart_address": f"127.0.0.1:{ports[1]}"} if elsewhere else {}
    first = Edge(
        tmp_path / "first",
        "receiver.connector",
        {"bind": f"127.0.0.1:{ports[0]}", "credits": CREDITS, **there},
    )
    command = [sys.executable, "-I", field_program.__file__, "127.0.0.1", str(ports[0]), str(COUNT)]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    edges = [first]
    try:
        assert first.log.reader(first.topic, 0).wait(100, 60)
        assert first.stop() == 0
        stored = seqs(first)
        if elsewhere:
            # It knows nothing of the first one: what was acknowledged there is sent again.
            options = {"bind": f"127.0.0.1:{ports[1]}"}
            edges = [Edge(tmp_path / "second", "receiver.connector", options)]
        else:
            first.start()
        said, _ = program.communicate(timeout=120)
    finally:
        program.kill()
        for edge in (first, *edges):
            if edge.process.poll() is None:
                edge.kill()
    begun = 0 if elsewhere else len(stored)
    assert said.splitlines() == [
        f"restart {there.get('restart_address')}",
        f"{begun} {COUNT - 1}",
    ]
    assert seqs(*edges) == list(range(COUNT))


def test_it_asks_again_for_a_stream_that_is_held_and_goes_on_behind_its_holder(edge: Start) -> None:
    one = edge("receiver.connector")
    holder = FieldProgram(*one.host_port, 5)
    asking: list[FieldProgram] = []
    waiting = threading.Thread(
        target=lambda: asking.append(FieldProgram(*one.host_port, 5)), daemon=True
    )
    waiting.start()
    for number in range(200):
        holder.send(number, b"x")
    waiting.join(0.2)
    assert waiting.is_alive()
    while holder.acked < 199:
        holder.hear_ack()
    holder.end()
    waiting.join(60)
    (second,) = asking
    assert second.refusals > 0
    assert second.acked == 199
    second.send(200, b"x")
    while second.acked < 200:
        second.hear_ack()
    assert seqs(one) == list(range(201))


def test_it_ends_a_stream_and_opens_it_again(edge: Start) -> None:
    one = edge("receiver.connector")
    program = FieldProgram(*one.host_port, 5)
    for number in range(3):
        program.send(10 * number, b"x")
        while program.acked < 10 * number:
            program.hear_ack()
        program.end()
        assert program.acked == 10 * number
        program.open()
        assert program.acked == 10 * number
    program.end()
    assert seqs(one) == [0, 10, 20]
