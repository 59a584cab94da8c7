"""Benchmarks of the log alone run in a process of their own, on the server's core; those of Spark on both.

So their memory is their own, and every thread that the log starts stays on that core.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from bench.process import SAMPLE_S, Failed, memory, on_core
from bench.suite import Suite
from bench.tools import HERE


def run_worker(
    suite: Suite,
    benchmark: str,
    module: str,
    arguments: dict[str, Any],
    timeout_s: float,
    *,
    both_cores: bool = False,
) -> dict[str, Any]:
    """Run `python -m MODULE` with the arguments as JSON; its last line of output is the result."""
    cores = suite.cores
    where = f"{cores.server},{cores.client}" if both_cores else cores.server
    command = on_core(where, [sys.executable, "-m", module, json.dumps(arguments)])
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryFile("w+") as out:
        worker = subprocess.Popen(command, cwd=HERE.parent, stdout=out)
        try:
            while worker.poll() is None:
                suite.saw_memory(benchmark, memory(worker.pid))
                if time.monotonic() > deadline:
                    raise Failed(f"{module} did not end in {timeout_s:.0f} s")
                time.sleep(SAMPLE_S)
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
        if worker.returncode != 0:
            raise Failed(f"{module} ended with {worker.returncode}")
        out.seek(0)
        result: dict[str, Any] = json.loads(out.read().splitlines()[-1])
        return result
