"""`receiver.connector` when something goes wrong: kills, a full disk, several processes, large messages."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.connector.columns import encode_messages, find_messages
from penstock.connector.frames import Ack
from penstock.edge.connector_stream import Columns, merged
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.rows import split
from penstock.log.names import TopicName
from tests.edge import field_program
from tests.edge.conftest import Edge
from tests.edge.extension import Extension
from tests.edge.field_program import FieldProgram
from tests.small_disk import small_disk
from tests.supervisor.running import Run, eventually

Start = Callable[..., Edge]
ROUNDS = 6
BIND = {"bind": "127.0.0.1:0"}


def payload(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number * 7919 % 600)


class Sender(threading.Thread):
    """Sends as fast as it may until the edge dies."""

    def __init__(self, edge: Edge, stream_id: int) -> None:
        super().__init__()
        self.program = FieldProgram(*edge.host_port, stream_id)
        self.resumed_after = self.program.acked
        self.wrong: list[BaseException] = []

    def run(self) -> None:
        number = self.resumed_after + 1
        try:
            while True:
                self.program.send(number, payload(number))
                number += 1
        except OSError:
            pass
        except BaseException as error:
            self.wrong.append(error)
        try:
            while True:  # what was said before the end counts
                self.program.hear_ack()
        except OSError:
            return


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_is_acknowledged_survives_kills_once_and_nothing_is_acknowledged_too_early(
    edge: Start,
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    one = edge("receiver.connector", BIND | {"credits": 500})
    streams = (3, 4, 2**64 - 1)
    acked = dict.fromkeys(streams, -1)
    for _ in range(ROUNDS):
        senders = [Sender(one, stream_id) for stream_id in streams]
        table = one.table()
        for sender in senders:
            mine = pc.equal(table["stream"], str(sender.program.stream_id))
            last = pc.max(table.filter(mine)["seq"]).as_py()
            assert sender.resumed_after == (-1 if last is None else last), (
                "the point of reference is what is stored"
            )
            assert sender.resumed_after >= acked[sender.program.stream_id], "an ack was taken back"
            sender.start()
        threading.Event().wait(chance.uniform(0.0, 0.4))
        one.kill()
        for sender in senders:
            sender.join()
            assert sender.wrong == []
            acked[sender.program.stream_id] = sender.program.acked
        one.start()
    assert one.log.verify(one.topic).corrupt == ()
    table = one.table().select(["stream", "seq", "payload"])
    for stream_id in streams:
        mine = table.filter(pc.equal(table["stream"], str(stream_id)))
        assert mine["seq"].to_pylist() == list(range(len(mine)))
        assert mine["payload"].to_pylist() == [payload(seq) for seq in range(len(mine))]
        assert len(mine) > acked[stream_id] > 0


def seqs(edge: Edge, stream_id: int) -> list[int]:
    return [row["seq"] for row in edge.table().to_pylist() if row["stream"] == str(stream_id)]


def test_a_program_written_from_the_description_runs_unchanged_and_resumes(edge: Start) -> None:
    one = edge("receiver.connector", BIND | {"credits": 50})
    host, port = one.host_port
    for count, expected in [(1000, "0 999"), (1500, "1000 1499"), (1500, "1500 1499")]:
        command = [sys.executable, "-I", field_program.__file__, host, str(port), str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.stdout.strip(), done.stderr) == (expected, "")
    assert one.payloads() == [b"line %d" % number for number in range(1500)]


@pytest.mark.slow
def test_a_full_disk_withholds_credits_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 24) as disk:
        disk.fill(leave_bytes=2 << 20)
        one = Edge(disk.path, "receiver.connector", BIND | {"credits": 1000})
        try:
            program = Extension(one.host_port)
            credits = program.greet().credits
            program.open(1)
            program.sock.settimeout(2)
            sent = send_until_nothing_comes_back(program)
            assert program.credits < credits + 1 + sent, "a message that waits keeps its credit"
            disk.make_room()
            program.sock.settimeout(60)
            program.acked(1, sent - 1)
            assert seqs(one, 1) == list(range(sent))
        finally:
            one.kill()


def send_until_nothing_comes_back(program: Extension) -> int:
    """As many messages as the credits allow; how many that were."""
    sent = 0
    while True:
        program.send(1, sent, payload=bytes(20_000))
        sent += 1
        while program.credits - sent - 1 <= 0:
            try:
                assert isinstance(program.hear(), Ack)
            except TimeoutError:
                return sent


FLOW = """
system: {maxprocs: 2, admin: {bind: "127.0.0.1:0"}, log: {partitions: 4}}
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  feed: {module: receiver.connector, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.dumper, params: {out: STDOUT}}
pipeline:
  web: {connect: out}
  feed: {connect: out}
"""


@pytest.mark.slow
def test_a_stream_is_held_once_where_several_processes_run(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(FLOW)
    with Run(flow) as run:
        run.wait_ready()
        host, _, port = run.addresses["feed"].rpartition(":")
        holders = [Extension((host, int(port))) for _ in range(6)]
        for holder in holders:
            holder.greet()
        assert [holder.open(9).success for holder in holders] == [True] + [False] * 5
        for number, holder in enumerate(holders):
            assert holder.open(100 + number).success
            holder.send(100 + number, *range(50))
            holder.acked(100 + number, 49)
        os.kill(run.pid("edge-0"), 9)
        again = eventually(lambda: _connected(host, int(port)), "the edge is back")
        assert [again.open(100 + number).point_of_reference for number in range(6)] == [49] * 6
        assert run.post(b"the others go on")
    log = EmbeddedLog(tmp_path / ".penstock")
    topic = TopicName.parse("orders.feed")
    counts = [log.reader(topic, partition).end() for partition in range(4)]
    assert sum(counts) == 300
    assert sum(map(bool, counts)) > 1, "streams are spread over the partitions"


def _connected(host: str, port: int) -> Extension | None:
    try:
        program = Extension((host, port))
        program.greet()
        return program
    except OSError:
        return None


@pytest.mark.parametrize("size", [0, 1, 700, 900_000, 9_000_000])
def test_what_is_stored_with_one_number_is_one_frame_of_the_log(size: int) -> None:
    """Half of a number, left by a crash, would make the point of reference wrong."""
    count = max(1, min(25_000, 40_000_000 // (size + 31)))
    payloads = pa.array([bytes(size)] * count, pa.binary())
    keys = pa.array([b"k" if number % 3 else None for number in range(count)], pa.binary())
    frames = encode_messages(7, np.arange(count), payloads, keys=keys)
    columns = Columns("in", 7, b"n" * 70_000)
    chunks = list(columns.chunks(find_messages(frames, 0, 1 << 30), "ns"))
    assert sum(chunk.rows.num_rows for chunk in chunks) == count
    assert chunks[-1].last == count - 1
    for chunk in chunks:
        assert len(split(chunk.rows, "p", chunk.last)) == 1
    few = chunks[: max(1, 8_000_000 // chunks[0].rows.nbytes)][:2]
    if sum(chunk.rows.num_rows for chunk in few) <= 10_000 and len(few) > 1:
        assert len(split(merged(few).rows, "p", few[-1].last)) == 1
