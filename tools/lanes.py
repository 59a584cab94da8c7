"""All tests, in lanes at once: those that kill a running flow, the others that start Spark, and the rest.

    python -m tools.lanes [options of pytest]

Most of the suite waits: for processes to start, for a disk, for a process that was killed to come back. Lanes
use that time. Every test finds its own ports and folders, so the lanes do not meet. The lines of each begin with its
name. Ends with 0 if all do.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
LANES = {
    "drill": (
        "engine/test_cluster.py",
        "engine/test_connector_sink.py",
        "engine/test_drill.py",
        "engine/test_state_drill.py",
        "spark/test_killed_writes.py",
    ),
    "spark": ("engine", "spark", "testing"),
}
"""Files and folders of tests, each without what an earlier lane has. Whatever else there is belongs to the last lane."""


def lanes() -> dict[str, list[str]]:
    """The arguments of pytest that choose each lane's tests."""
    found: dict[str, list[str]] = {}
    taken: list[str] = []
    for lane, names in {**LANES, "rest": ("",)}.items():
        mine = [str(TESTS / name) for name in names]
        found[lane] = mine + [f"--ignore={path}" for path in taken]
        taken += mine
    return found


def main(options: Sequence[str]) -> int:
    running = {name: _start(name, chosen, options) for name, chosen in lanes().items()}
    readers = [
        threading.Thread(target=_show, args=(name, process)) for name, process in running.items()
    ]
    for reader in readers:
        reader.start()
    try:
        for reader in readers:
            reader.join()
    except KeyboardInterrupt:  # they were told as well
        pass
    codes = {name: process.wait() for name, process in running.items()}
    failed = [name for name, code in codes.items() if code != 0]
    print(f"failed: {', '.join(failed)}" if failed else "every lane passed", flush=True)
    return 1 if failed else 0


def _start(name: str, chosen: list[str], options: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pytest",
            "-o",
            f"cache_dir=.pytest_cache/{name}",
            *chosen,
            *options,
        ],
        cwd=TESTS.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _show(name: str, process: subprocess.Popen[str]) -> None:
    began = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        print(f"{name:<5} | {line}", end="", flush=True)
    print(f"{name:<5} | took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
