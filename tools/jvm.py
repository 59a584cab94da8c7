"""Javas that start fast: the tests start Spark some thirty times, and most of what they wait for is that.

    python -m tools.jvm        make the archive, if there is none

Two things halve what a start costs. The compiler stops at its first level, since no test runs for long enough to
gain from the second. And classes come from an archive (class data sharing), which is made once: a Spark that
runs flows leaves one behind when it ends. It fits one Java, one PySpark and one folder, and is made anew
for others. Without one everything works, and takes longer.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VARIABLE = "JAVA_TOOL_OPTIONS"
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
_TRAINING = "tools.train_jvm"
_TIMEOUT_S = 300.0


def options() -> str:
    """For every JVM of a test. What it says of an archive that does not fit (Kafka's, say) must not be
    in the way of what Spark's launcher prints, so it says nothing."""
    archive = _archive()
    if archive is None or not archive.exists():
        return _QUICK
    return f"{_QUICK} -XX:SharedArchiveFile={archive} -Xlog:disable"


def make_archive() -> Path | None:
    archive = _archive()
    if archive is None or archive.exists():
        return archive
    print("  spark: making an archive of its classes, so that tests start it faster", flush=True)
    archive.parent.mkdir(parents=True, exist_ok=True)
    made = archive.with_suffix(".new")
    made.unlink(missing_ok=True)  # of a try that was broken off
    environment = {
        **os.environ,
        VARIABLE: _QUICK,
        "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={made} -Xlog:disable",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        [sys.executable, "-m", _TRAINING],
        cwd=ROOT,
        env=environment,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        trained = process.wait(_TIMEOUT_S) == 0 and _all_gone(process.pid)
    except subprocess.TimeoutExpired:
        trained = False
    if not trained or not made.exists():
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        print("  spark: no archive could be made; tests take longer", flush=True)
        return None
    made.rename(archive)
    for old in archive.parent.glob("*.jsa"):
        if old != archive:
            old.unlink()
    return archive


def _archive() -> Path | None:
    from penstock.errors import NoJava
    from penstock.spark.java import find_java

    try:
        java = find_java().program.resolve()
    except NoJava:
        return None
    built = java.stat().st_mtime_ns
    what = f"{java} {built} {version('pyspark')} {sys.prefix} {_QUICK}"
    digest = hashlib.sha256(what.encode()).hexdigest()[:16]
    return ROOT / ".tools" / "jvm" / f"spark-{digest}.jsa"


def _all_gone(group: int) -> bool:
    """The JVM writes the archive after the program has ended."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    make_archive()
