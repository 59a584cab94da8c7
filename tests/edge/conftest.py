"""An edge process as the supervisor would start it, for tests that talk to its sockets."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.edge.plan import EdgePlan, ReceiverPlan
from penstock.log import SCHEMA, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog


class Edge:
    """A running edge process with one receiver called `in`, writing to the topic `t`.

    `table` and `payloads` give what was stored since `begin_anew`: tests can share a process.
    """

    def __init__(self, data_dir: Path, module: str, options: dict[str, Any], **more: Any) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir / f"edge-{more.get('process', 0)}.log"
        self.log = EmbeddedLog(data_dir)
        self.topic = TopicName.parse("t")
        process, processes = more.pop("process", 0), more.pop("processes", 1)
        if process == 0 and not more.pop("made", False):
            self.log.create(self.topic, TopicConfig(partitions=processes))
        stages = more.pop("interceptors", [])
        receiver = ReceiverPlan("in", module, options, stages, "t", processes)
        self._plan = EdgePlan(
            flow="f",
            data_dir=str(data_dir),
            process=process,
            processes=processes,
            receivers=[receiver],
            stop_timeout_s=more.pop("stop_timeout_s", 10.0),
            max_pending_bytes=more.pop("max_pending_bytes", 64 << 20),
            log_level="info",
            log_format="plain",
            engine=more.pop("engine", False),
        )
        assert not more
        self._begin = 0
        self.start()

    def begin_anew(self) -> None:
        reader = self.log.reader(self.topic, 0)
        self._begin = reader.end()
        reader.close()

    def start(self) -> None:
        message = self.start_and_hear()
        assert message["type"] == "ready", message
        self.address: str = message["addresses"]["in"]

    def start_and_hear(self) -> dict[str, Any]:
        """What the process says when it has recovered: that it is ready, or why it is not."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "penstock.edge", "--control", str(theirs.fileno())]
        with open(self.log_path, "ab") as lines, theirs:
            self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stderr=lines)
        self.control = ours
        self.control.settimeout(60)
        self.say({"type": "plan", "plan": self._plan.to_json()})
        assert self.hear()["type"] == "recovering"
        return self.hear()

    def say(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        self.control.sendall(len(body).to_bytes(4, "big") + body)

    def hear(self) -> dict[str, Any]:
        size = int.from_bytes(self._exactly(4), "big")
        found: dict[str, Any] = json.loads(self._exactly(size))
        return found

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.control.recv(size - len(data))
            assert chunk, "the edge process has gone"
            data += chunk
        return data

    def stats(self) -> dict[str, Any]:
        self.say({"type": "stats", "n": 1})
        found: dict[str, Any] = self.hear()["data"]
        return found

    @property
    def host_port(self) -> tuple[str, int]:
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.host_port, timeout=30)

    def table(self, partition: int = 0) -> pa.Table:
        reader = self.log.reader(self.topic, partition)
        return pa.Table.from_batches(list(reader.read(self._begin)), SCHEMA)

    def payloads(self) -> list[bytes]:
        found: list[bytes] = self.table().column("payload").to_pylist()
        return found

    def wait_for(self, count: int) -> list[bytes]:
        assert self.log.reader(self.topic, 0).wait(self._begin + count - 1, 30)
        return self.payloads()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.control.close()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.control.close()
        return code


def ended(one: Edge) -> None:
    if one.process.poll() is None:
        one.kill()
    printed = one.log_path.read_text()
    assert "Traceback" not in printed, printed
    assert "Task exception" not in printed, printed


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Callable[..., Edge]]:
    started: list[Edge] = []

    def start(module: str, options: dict[str, Any] | None = None, **more: Any) -> Edge:
        given = {"bind": "127.0.0.1:0"} if options is None else options
        started.append(Edge(tmp_path, module, given, **more))
        return started[-1]

    yield start
    for one in started:
        ended(one)


@pytest.fixture(scope="session")
def _usual_web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    one = Edge(tmp_path_factory.mktemp("web"), "receiver.http", {"bind": "127.0.0.1:0"})
    yield one
    ended(one)


@pytest.fixture
def web(_usual_web: Edge) -> Edge:
    """An HTTP receiver with nothing but defaults, the same process for all tests that only ask it."""
    _usual_web.begin_anew()
    return _usual_web
