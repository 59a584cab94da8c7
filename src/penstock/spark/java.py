"""Finding a Java that Spark can run on, without starting Spark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import NoJava

MIN_JAVA = 17
CLONE = Path(__file__).parents[3]
"""Where this source is, if it is a clone: `make setup` unpacks a Java there if it may not install one."""

SYSTEM_FOLDERS = (Path("/usr/lib/jvm"), Path.home() / ".sdkman/candidates/java", Path("/opt"))

_ANSWER_S = 30.0
"""How long a Java may take to run next to nothing."""


@dataclass(frozen=True, slots=True)
class Java:
    version: int
    program: Path
    how: str  # it was found: "JAVA_HOME", "on the path", "in /usr/lib/jvm"
    fault: str = ""  # why nothing runs on it

    @property
    def home(self) -> Path:
        """What JAVA_HOME has to say. Links are followed: /usr/bin/java is one."""
        return self.program.resolve().parent.parent

    def __str__(self) -> str:
        broken = f", which is broken: {self.fault}" if self.fault else ""
        return f"{self.version} at {self.program} ({self.how}){broken}"


def find_java() -> Java:
    """The first Java that works and is new enough. NoJava says what was found instead, and what to do."""
    others: list[str] = []
    for java in javas():
        if java.version >= MIN_JAVA and not java.fault:
            return java
        others.append(str(java))
    found = f"found only {'; '.join(others)}" if others else "found none"
    raise NoJava(f"Spark needs Java {MIN_JAVA} or later; {found}. {ADVICE[0].upper()}{ADVICE[1:]}")


ADVICE = (
    f"install Java {MIN_JAVA} or later (Debian: `apt install openjdk-{MIN_JAVA}-jre-headless`), "
    "or set JAVA_HOME"
)


def javas() -> Iterator[Java]:
    """Every Java that answers: JAVA_HOME's, the path's, the project's own, the system's."""
    for how, program in _places():
        answer = _ask(program)
        if answer is None:
            continue
        said = answer.stdout + answer.stderr
        if version := _version(said):
            fault = "" if answer.returncode == 0 else _fault(said)
            yield Java(version, program, how, fault)


def _places() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "on the path", Path(on_path)
    for folder in dict.fromkeys((Path.cwd(), CLONE)):
        yield f"in {folder}", folder / ".java" / "bin" / "java"
    for root in SYSTEM_FOLDERS:
        try:
            found = sorted(root.glob("*/bin/java"))
        except OSError:
            continue
        yield from ((f"in {root}", program) for program in found)


def _ask(program: Path) -> subprocess.CompletedProcess[str] | None:
    """Its version, and what running a program on it gives.

    The program is one that every Java has, and it needs `java.security`. Of a Java that was copied without its
    configuration, `-version` alone says nothing.
    """
    if not os.access(program, os.X_OK):
        return None
    try:
        return subprocess.run(
            [program, "-showversion", "sun.security.tools.keytool.Main", "-help"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _version(said: str) -> int | None:
    match = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if match is None:
        return None
    # Up to 8 the second number counts: "1.8".
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _fault(said: str) -> str:
    """The line that says what is wrong, of many."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return next((line for line in lines if re.search("error|exception", line, re.I)), lines[-1])
