"""`penstock run` as a real process, for tests."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import orjson

PENSTOCK = [sys.executable, "-P", "-m", "penstock.cli"]
WAIT_S = 120.0
"""For what happens soon on an idle machine; tests run on busy ones."""

ENDS_S = 300.0
"""For an end: a flow may take its `stop_timeout_s` for the edge, and as long again for the engine."""

ONE_RECEIVER = """
system: {admin: {bind: "127.0.0.1:0"}}
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.dumper, params: {out: STDOUT}}
pipeline:
  web: {connect: out}
"""


def clean_environment(**more: str) -> dict[str, str]:
    """This environment without settings of Penstock's and without an idea of the terminal."""
    unwanted = ("PENSTOCK_", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, **more}


def eventually(happens: Callable[[], Any], what: str) -> Any:
    """Look again until `happens` gives something true, and give that back."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := happens():
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not happen in {WAIT_S:.0f} s: {what}")


def alive(pid: int) -> bool:
    """A zombie is dead."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


class Run:
    """A supervisor. Use as a context: at its end it is stopped, or killed if the test failed.

    Without `engine`, messages stay in their topics: most of what it does needs no Spark.
    """

    def __init__(
        self,
        flow: Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        engine: bool = False,
    ) -> None:
        self.errors = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed in __exit__
        self.process = subprocess.Popen(
            [*PENSTOCK, "run", str(flow), *arguments, *([] if engine else ["--edge-only"])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env=env or clean_environment(),
        )
        self.addresses: dict[str, str] = {}

    def wait_ready(self) -> Self:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        words = line.split()
        assert words[:1] == ["ready"], f"got {line!r}; stderr: {self.log()}"
        self.addresses = dict(word.split("=", 1) for word in words[1:])
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        # The admin API knows the other processes; they go by themselves when this one does.
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kind else signal.SIGTERM)
        self.process.wait(ENDS_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()

    def log(self) -> str:
        self.errors.flush()
        size = os.fstat(self.errors.fileno()).st_size
        return os.pread(self.errors.fileno(), size, 0).decode()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        return self.process.wait(ENDS_S)

    def call(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
        """The admin API: the status, and the JSON or the text."""
        return request(self.addresses["admin"], method, path, body)

    def post(self, body: bytes, receiver: str = "web") -> str:
        """The id of the stored message."""
        status, answer = request(self.addresses[receiver], "POST", "/", body)
        assert status == 202, (status, answer)
        return str(answer["id"])

    def processes(self) -> dict[str, dict[str, Any]]:
        status, health = self.call("GET", "/health")
        assert status == 200
        return {process["name"]: process for process in health["processes"]}

    def pid(self, name: str) -> int:
        """Of a process that lives: one that was just killed is waited for."""
        pid = eventually(lambda: self.processes()[name]["pid"], f"{name} lives")
        assert isinstance(pid, int)
        return pid


def request(
    address: str,
    method: str,
    path: str,
    body: bytes | None = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        content = response.read()
        if "json" in response.headers.get("content-type", ""):
            return response.status, orjson.loads(content)
        return response.status, content.decode()
    finally:
        connection.close()


def metric(text: str, name: str, **labels: str) -> float:
    """The sum of a metric's samples that have these labels."""
    total = 0.0
    for line in text.splitlines():
        head, _, value = line.rpartition(" ")
        wanted = all(f'{label}="{text}"' in head for label, text in labels.items())
        if head.partition("{")[0] == name and wanted:
            total += float(value)
    return total
