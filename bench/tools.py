"""The programs that the benchmarks need besides Penstock, and where they come from.

A program on the PATH is used as it is. What is missing is downloaded from the system's own
package sources and unpacked under `bench/.tools`, not installed: no service is ever started,
nothing outside this folder changes, and no root is needed. Only Go is installed as a package,
because its tree does not work unpacked elsewhere, and only as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOOLS = HERE / ".tools"
PEERS = HERE / "peers"

PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "rsyslogd": "rsyslog"}
OWN_PEERS = ("gocommit", "bulkpost", "tcplines", "datagrams")

DOWNLOAD_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 300


class Missing(Exception):
    """A program could not be had; the message says which package would bring it."""


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and the environment that it needs to find its own libraries."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)
    root: Path | None = None  # where its package was unpacked, or None if it is installed


def find(name: str) -> Program:
    """The program by its name, downloaded first if need be. Missing if that fails."""
    if name in OWN_PEERS:
        return _built(name)
    installed = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if installed:
        return Program(Path(installed))
    return _unpacked(name)


def _unpacked(name: str) -> Program:
    package = PACKAGES[name]
    root = TOOLS / package
    stamp = root / ".complete"
    if not stamp.exists():
        print(f"  {name}: not installed; unpacking the package {package} into {root}", flush=True)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for archive in _download(package, root):
            _call(["dpkg-deb", "-x", str(archive), str(root)], package, DOWNLOAD_TIMEOUT_S)
            archive.unlink()
        stamp.touch()
    for folder in ("usr/sbin", "usr/bin"):
        if (path := root / folder / name).exists():
            libraries = sorted({str(lib.parent) for lib in root.glob("usr/lib/**/*.so*")})
            return Program(path, {"LD_LIBRARY_PATH": ":".join(libraries)}, root)
    raise Missing(f"the package {package} has no program {name}; install it by hand")


def _download(package: str, into: Path) -> list[Path]:
    """The package and those of its dependencies that this system lacks."""
    if shutil.which("apt-get") is None:
        raise Missing(f"{package} is not installed, and there is no apt-get to get it with")
    simulate = ["apt-get", "-s", "install", "--no-install-recommends", package]
    try:
        plan = _call(simulate, package, DOWNLOAD_TIMEOUT_S)
    except Missing:
        if os.geteuid() != 0:
            raise
        _call(["apt-get", "update"], package, DOWNLOAD_TIMEOUT_S)
        plan = _call(simulate, package, DOWNLOAD_TIMEOUT_S)
    wanted = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
    _call(["apt-get", "download", *wanted], package, DOWNLOAD_TIMEOUT_S, cwd=into)
    return sorted(into.glob("*.deb"))


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
    _call(command, "golang-go", BUILD_TIMEOUT_S, cwd=PEERS, env=env)
    return Program(target)


def _go() -> Path:
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", "/usr/lib/go/bin/go"):
        if candidate and Path(candidate).exists():
            return Path(candidate)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing("Go is not installed: install the package golang-go, or put go on the PATH")
    print("  go: not installed; installing the package golang-go", flush=True)
    install = ["apt-get", "install", "-y", "--no-install-recommends", "golang-go"]
    try:
        _call(install, "golang-go", DOWNLOAD_TIMEOUT_S)
    except Missing:
        _call(["apt-get", "update"], "golang-go", DOWNLOAD_TIMEOUT_S)
        _call(install, "golang-go", DOWNLOAD_TIMEOUT_S)
    found = shutil.which("go")
    if found is None:
        raise Missing("the package golang-go was installed, yet there is no go on the PATH")
    return Path(found)


def _call(
    command: list[str],
    package: str,
    timeout_s: float,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    full_env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C", **(env or {})}
    try:
        done = subprocess.run(
            command, cwd=cwd, env=full_env, timeout=timeout_s, text=True, capture_output=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{package}: {' '.join(command[:3])}: {error}") from None
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise Missing(f"{package}: {' '.join(command[:3])} failed: {' '.join(last)}")
    return done.stdout
