"""Servers under test as processes: started on their core, watched, and stopped by their own id.

A `Server` is a tree of processes. Its CPU time and its memory are those of the whole tree, because
Penstock, nginx and rsyslog each spread their work over processes or threads in their own way.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.tools import Program

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
SAMPLE_S = 0.2
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Failed(Exception):
    """A server or a load generator did not do what it was started for."""


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """A loopback port that is free now. Nobody else here binds random ports, so it stays so."""
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def on_core(cpu: int | str, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(cpu), *command]


class Server:
    """A process tree on one core. `memory` holds the peaks that the watcher saw."""

    def __init__(
        self,
        name: str,
        command: list[str],
        *,
        cpu: int | None,
        log: Path,
        env: dict[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.memory = {"rss_mb": 0.0, "anonymous_mb": 0.0}
        self._stop_watching = threading.Event()
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command if cpu is None else on_core(cpu, command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})},
                start_new_session=True,  # a Ctrl-C in the benchmark must reach us first
            )
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self.process.poll() is not None:
                code = self.process.returncode
                raise Failed(f"{self.name} ended with {code} before it was ready: {self._last()}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} was not ready in {timeout_s:.0f} s: {self._last()}")
            time.sleep(0.02)

    def wait_until_listening(self, port: int) -> None:
        def listening() -> bool:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        self.wait_until(listening)

    def wait_until_printed(self, word: str) -> None:
        """Until a line of the output begins with the word."""

        def printed() -> bool:
            return any(line.startswith(word) for line in self.log.read_text().splitlines())

        self.wait_until(printed)

    def cpu_s(self) -> float:
        """User and system time of the tree so far, children that have ended included."""
        ticks = 0
        for index, fields in enumerate(_stats(self.process.pid)):
            ticks += int(fields[11]) + int(fields[12])
            if index == 0:
                ticks += int(fields[13]) + int(fields[14])
        return ticks / TICKS_PER_S

    def stop(self) -> None:
        """Ask, then insist; only the processes of this tree, each by its own id."""
        self._stop_watching.set()
        self._watcher.join()
        if self.process.poll() is None:
            tree = [int(fields[-1]) for fields in _stats(self.process.pid)]
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                for pid in tree:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _watch(self) -> None:
        while not self._stop_watching.wait(SAMPLE_S):
            for name, value in tree_memory(self.process.pid).items():
                self.memory[name] = max(self.memory[name], value)

    def _last(self) -> str:
        with suppress(OSError):
            return " | ".join(self.log.read_text(errors="replace").strip().splitlines()[-5:])
        return "no output"


def tree_memory(root: int) -> dict[str, float]:
    """Resident MB of the tree. Anonymous leaves out mapped files, which the kernel may drop."""
    return memory(*(int(fields[-1]) for fields in _stats(root)))


def memory(*pids: int) -> dict[str, float]:
    """A child that has not yet become another program has its parent's memory: it is counted once."""
    seen: set[tuple[str, ...]] = set()
    rss_kb = anonymous_kb = 0
    for pid in pids:
        with suppress(OSError, KeyError):
            command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            status = dict(line.split(":", 1) for line in lines)
            if (known := (command, status["VmSize"], status["RssAnon"])) in seen:
                continue
            seen.add(known)
            rss_kb += int(status["VmRSS"].split()[0])
            anonymous_kb += int(status["RssAnon"].split()[0])
    return {"rss_mb": round(rss_kb / 1024, 1), "anonymous_mb": round(anonymous_kb / 1024, 1)}


def _stats(root: int) -> list[list[str]]:
    """`/proc/PID/stat` after the name, for the root and all below it; the id is appended last."""
    found = []
    waiting = [root]
    while waiting:
        pid = waiting.pop(0)
        with suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text()
            found.append([*text.rpartition(")")[2].split(), str(pid)])
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):
                    waiting.extend(map(int, (task / "children").read_text().split()))
    return found


def run_load(program: Program, arguments: list[str], *, cpu: int, timeout_s: float) -> str:
    """A load generator from start to end on its core; what it printed."""
    name = program.path.name
    try:
        done = subprocess.run(
            on_core(cpu, [str(program.path), *arguments]),
            env={**os.environ, "GOMAXPROCS": "1", **program.env},
            text=True,
            capture_output=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name} did not end in {timeout_s:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"{name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def run_load_json(
    program: Program, arguments: list[str], *, cpu: int, timeout_s: float
) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(run_load(program, arguments, cpu=cpu, timeout_s=timeout_s))
    return result
