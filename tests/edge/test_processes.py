"""Several edge processes on one port: named streams reach their partition from whichever they come to."""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from tests.supervisor.running import ONE_RECEIVER, WAIT_S, Run, eventually

pytestmark = pytest.mark.slow
TOPIC = TopicName("default", "orders.web")
STREAMS = 6


class Sender(threading.Thread):
    """Numbers its messages on one stream, one at a time, and sends again what was not answered."""

    def __init__(self, address: str, stream: str, stop: threading.Event) -> None:
        super().__init__()
        self.address = address
        self.stream = stream
        self.stopping = stop
        self.next = 0
        self.refused: list[tuple[int, bytes]] = []

    def run(self) -> None:
        connection: http.client.HTTPConnection | None = None
        while not self.stopping.is_set():
            if connection is None or self.next % 5 == 4:  # to another process, perhaps
                connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
            headers = {"Penstock-Stream": self.stream, "Penstock-Sequence": str(self.next)}
            try:
                connection.request("POST", "/", f"{self.stream}:{self.next}", headers)
                answer = connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException):
                connection = None
                self.stopping.wait(0.05)
                continue
            if answer.status == 202:
                self.next += 1
            else:
                self.refused.append((answer.status, body))
                self.stopping.wait(0.05)


def stored(data_dir: Path) -> tuple[dict[str, list[int]], list[int]]:
    """The numbers of each stream, in the order of its partition; and the size of each partition."""
    log = EmbeddedLog(data_dir)
    found: dict[str, list[int]] = {}
    sizes = []
    for partition in range(log.config(TOPIC).partitions):
        sizes.append(0)
        for batch in log.reader(TOPIC, partition).read(0):
            sizes[-1] += batch.num_rows
            for payload in batch.column("payload").to_pylist():
                stream, _, number = payload.decode().partition(":")
                found.setdefault(stream, []).append(int(number))
    return found, sizes


def test_named_streams_keep_their_numbers_whichever_process_they_reach_and_whoever_is_killed(
    tmp_path: Path,
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER)
    stop = threading.Event()
    with Run(flow, "--maxprocs", "2") as run:
        run.wait_ready()
        address = run.addresses["web"]
        senders = [Sender(address, f"till-{i}", stop) for i in range(STREAMS)]
        for sender in senders:
            sender.start()
        try:
            eventually(lambda: min(sender.next for sender in senders) > 20, "everyone is answered")
            assert [sender.refused for sender in senders] == [[]] * STREAMS
            for _ in range(4):
                victim = run.pid(f"edge-{chance.randrange(2)}")
                os.kill(victim, signal.SIGKILL)
                goal = min(sender.next for sender in senders) + 20
                eventually(
                    lambda goal=goal: min(sender.next for sender in senders) > goal,
                    "everyone is answered again",
                )
            assert run.stop() == 0  # under load
        finally:
            stop.set()
            for sender in senders:
                sender.join()
    found, sizes = stored(tmp_path / ".penstock")
    for sender in senders:
        numbers = found[sender.stream]
        assert numbers == list(range(len(numbers))), "in order, none missing, none twice"
        # The last one may be stored without its answer having come.
        assert len(numbers) in (sender.next, sender.next + 1)
        assert {code for code, _ in sender.refused} <= {503}
    assert min(sizes) > 0, "both processes had streams of their own"
