"""What `penstock doctor` looks at: one function a thing, each gives what it found and what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from penstock.cli.output import human_bytes
from penstock.errors import NoJava
from penstock.limits import MAX_CONNECTIONS, SEGMENT_BYTES, GiB, MiB
from penstock.spark.java import ADVICE, find_java, javas

_MIN_PYTHON = (3, 11)
_GOOD_FREE_BYTES = 10 * GiB
_GOOD_SYNC_S = 0.005
_SYNCS = 20
_GOOD_FILES = MAX_CONNECTIONS + 1024
_MIN_FILES = 256
_GOOD_RECEIVE_BYTES = 8 * MiB
_ANSWER_S = 10.0
"""How long another program may take to say its version."""


class Verdict(Enum):
    OK = "ok"
    ADVICE = "advice"  # works without; better with
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    verdict: Verdict
    what: str
    found: str
    advice: str = ""


def python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    if sys.version_info < _MIN_PYTHON:
        wanted = ".".join(map(str, _MIN_PYTHON))
        return Finding(Verdict.MISSING, "Python", found, f"install Python {wanted} or later")
    return Finding(Verdict.OK, "Python", found)


def packages() -> Iterator[Finding]:
    """What Penstock itself needs, as its own metadata says."""
    try:
        requirements = importlib.metadata.requires("penstock") or []
    except importlib.metadata.PackageNotFoundError:
        advice = "install it: `make setup` in a clone, or `pip install penstock`"
        yield Finding(Verdict.MISSING, "packages", "penstock itself is not installed", advice)
        return
    wrong = [problem for text in requirements if (problem := _requirement_problem(text))]
    if wrong:
        advice = "run `make setup`, or `pip install --upgrade penstock`"
        yield Finding(Verdict.MISSING, "packages", "; ".join(wrong), advice)
    else:
        yield Finding(Verdict.OK, "packages", f"all {len(requirements)} that Penstock needs")


def _requirement_problem(requirement: str) -> str | None:
    text, _, marker = requirement.partition(";")
    match = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=\s*([0-9.]+))?", text)
    if match is None or "extra" in marker:
        return None
    name, least = match[1], match[2]
    try:
        installed = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if least and _version(installed) < _version(least):
        return f"{name} is {installed}, needs {least}"
    return None


def _version(text: str) -> tuple[int, ...]:
    parts = [int(part) for part in re.findall(r"\d+", text)[:4]]
    return tuple(parts + [0] * (4 - len(parts)))


def event_loop() -> Finding:
    if importlib.util.find_spec("uvloop") is None:
        advice = "`pip install uvloop`: receivers run several times as fast with it"
        return Finding(Verdict.ADVICE, "uvloop", "not installed", advice)
    return Finding(Verdict.OK, "uvloop", importlib.metadata.version("uvloop"))


def uv() -> Finding:
    path = shutil.which("uv")
    if path is None:
        advice = "only for working on Penstock: `make setup` installs it, or `pip install uv`"
        return Finding(Verdict.ADVICE, "uv", "not found", advice)
    answer = _ask([path, "--version"])
    return Finding(
        Verdict.OK, "uv", f"{answer.split()[1] if answer.split()[1:] else '?'} at {path}"
    )


def java() -> Finding:
    """Any Java of the right age that works: where JAVA_HOME points, on the path, or where systems put it."""
    try:
        return Finding(Verdict.OK, "Java", str(find_java()))
    except NoJava:
        found = "; ".join(map(str, javas())) or "not found"
        advice = f"links and sinks run on Spark, which needs one: {ADVICE}"
        return Finding(Verdict.MISSING, "Java", found, advice)


def _ask(command: list[str]) -> str:
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout + answer.stderr


def disk(data_dir: Path) -> Iterator[Finding]:
    """Space and the cost of a sync, where topics are or would be."""
    folder = data_dir
    while not folder.exists():
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        advice = "choose another with --data-dir, or change its permissions"
        yield Finding(Verdict.MISSING, "data directory", f"{folder} cannot be written", advice)
        return
    note = "" if folder == data_dir else f" (for {data_dir}, which does not exist yet)"
    yield Finding(Verdict.OK, "data directory", f"{folder}{note}")
    yield _space(folder)
    yield _sync(folder)


def _space(folder: Path) -> Finding:
    free_bytes = shutil.disk_usage(folder).free
    found = f"{human_bytes(free_bytes)} free"
    if free_bytes < 2 * SEGMENT_BYTES:
        advice = "too little for a topic: free some, or choose another --data-dir"
        return Finding(Verdict.MISSING, "disk space", found, advice)
    if free_bytes < _GOOD_FREE_BYTES:
        advice = "set a retention (`system.log.retention`), so that topics do not fill the disk"
        return Finding(Verdict.ADVICE, "disk space", found, advice)
    return Finding(Verdict.OK, "disk space", found)


def _sync(folder: Path) -> Finding:
    took_s = []
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for _ in range(_SYNCS):
                file.write(bytes(512))
                file.flush()
                began = time.perf_counter()
                os.fdatasync(file.fileno())
                took_s.append(time.perf_counter() - began)
    except OSError as error:
        advice = "choose another --data-dir"
        return Finding(Verdict.MISSING, "fdatasync", str(error.strerror), advice)
    median_s = statistics.median(took_s)
    found = f"{median_s * 1000:.2f} ms (slowest of {_SYNCS}: {max(took_s) * 1000:.2f} ms)"
    if median_s > _GOOD_SYNC_S:
        advice = "a slow disk: every answer waits for one; many senders at once share it"
        return Finding(Verdict.ADVICE, "fdatasync", found, advice)
    return Finding(Verdict.OK, "fdatasync", found)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{_limit(soft)} open files (may be raised to {_limit(hard)})"
    if soft != resource.RLIM_INFINITY and soft < _GOOD_FILES:
        verdict = Verdict.MISSING if soft < _MIN_FILES else Verdict.ADVICE
        advice = f"`ulimit -n {_GOOD_FILES}` before `penstock run`, for many connections"
        return Finding(verdict, "open files", found, advice)
    return Finding(Verdict.OK, "open files", found)


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def receive_buffer() -> Finding:
    try:
        size_bytes = int(Path("/proc/sys/net/core/rmem_max").read_text())
    except (OSError, ValueError):
        advice = "receivers of datagrams use what the system gives"
        return Finding(Verdict.ADVICE, "receive buffer", "this system does not say", advice)
    found = f"{human_bytes(size_bytes)} (net.core.rmem_max)"
    if size_bytes < _GOOD_RECEIVE_BYTES:
        advice = f"for UDP at high rates: `sysctl -w net.core.rmem_max={_GOOD_RECEIVE_BYTES}`"
        return Finding(Verdict.ADVICE, "receive buffer", found, advice)
    return Finding(Verdict.OK, "receive buffer", found)
