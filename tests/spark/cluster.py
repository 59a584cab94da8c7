"""A standalone Spark cluster on loopback, from the jars in the PySpark wheel."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from penstock.spark.java import find_java
from tests.supervisor.running import alive, clean_environment, eventually

CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
DEPLOY = "org.apache.spark.deploy"


class Cluster:
    """One master, and workers with one core each. Use as a context."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        started = self._start(
            "master", f"{DEPLOY}.master.Master", "--host", "127.0.0.1", "--port", "0"
        )
        self.url = eventually(
            lambda: _found(r"Starting Spark master at (\S+)", started), "a master"
        )
        for number in range(self._workers):
            home = self._folder / f"worker-{number}"
            self._start(
                home.name,
                f"{DEPLOY}.worker.Worker",
                *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--work-dir", str(home)),
                self.url,
            )
        eventually(
            lambda: len(re.findall("Registering worker", started.read_text())) == self._workers,
            "workers",
        )
        return self

    def _start(self, name: str, *arguments: str) -> Path:
        log = self._folder / f"{name}.log"
        # Without the paths of the driver: what its workers import must come from the driver.
        env = clean_environment(
            JAVA_HOME=str(find_java().home),
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_DAEMON_MEMORY="256m",
            SPARK_MASTER_WEBUI_PORT="0",
            SPARK_WORKER_WEBUI_PORT="0",
        )
        env.pop("PYTHONPATH", None)
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(CLASS), *arguments], env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        self._processes.append(process)
        return log

    def executors(self) -> list[int]:
        """The processes of its workers in which tasks run."""
        found = [pid for process in self._processes for pid in _children(process.pid)]
        # Not what is left of the script that started the worker.
        return [pid for pid in found if alive(pid)]

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            process.terminate()  # a worker ends its executors
        for process in self._processes:
            process.wait(60)


def _found(pattern: str, log: Path) -> str | None:
    match = re.search(pattern, log.read_text())
    return match[1] if match else None


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found
