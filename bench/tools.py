"""The programs that the benchmarks need besides Penstock, and where they come from.

They are on the PATH, or unpacked under `bench/.tools` (see `tools.programs`). Only Go is installed as a package,
because its tree does not work unpacked elsewhere, and only as root.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools import programs
from tools.programs import Missing, Program, call

HERE = Path(__file__).resolve().parent
TOOLS = HERE / ".tools"
PEERS = HERE / "peers"

PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "rsyslogd": "rsyslog"}
OWN_PEERS = ("gocommit", "bulkpost", "tcplines", "datagrams")

BUILD_TIMEOUT_S = 300


def find(name: str) -> Program:
    """The program by its name, downloaded first if need be. Missing if that fails."""
    if name in OWN_PEERS:
        return _built(name)
    return programs.find(name, PACKAGES[name], TOOLS)


def _built(name: str) -> Program:
    target = TOOLS / "bin" / name
    source = PEERS / name / "main.go"
    if target.exists() and target.stat().st_mtime > source.stat().st_mtime:
        return Program(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"  {name}: building {source.relative_to(HERE.parent)}", flush=True)
    command = [str(_go()), "build", "-o", str(target), f"./{name}"]
    # A version written in go.mod must never make Go fetch another toolchain in a benchmark.
    env = {"GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}
    call(command, "golang-go", BUILD_TIMEOUT_S, cwd=PEERS, env=env)
    return Program(target)


def _go() -> Path:
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"):
        if candidate and Path(candidate).exists():
            return Path(candidate)
    programs.install("golang-go")
    found = shutil.which("go")
    if found is None:
        raise Missing("the package golang-go was installed, yet there is no go on the PATH")
    return Path(found)
