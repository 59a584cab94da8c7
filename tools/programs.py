"""Programs that tests and benchmarks need besides Penstock, and where they come from.

A program on the PATH is used as it is. What is missing is downloaded from the system's own package sources
and unpacked into a folder, not installed: no service is ever started, nothing outside that folder changes,
and no root is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

DOWNLOAD_TIMEOUT_S = 300


class Missing(Exception):
    """A program could not be had; the message says which package would bring it."""


@dataclass(frozen=True, slots=True)
class Program:
    """An executable and the environment that it needs to find its own libraries."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)
    root: Path | None = None  # where its package was unpacked, or None if it is installed


def find(name: str, package: str, folder: Path) -> Program:
    """The program by its name, unpacked below `folder` first if need be. Missing if that fails."""
    installed = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if installed:
        return Program(Path(installed))
    return _unpacked(name, package, folder / package)


def _unpacked(name: str, package: str, root: Path) -> Program:
    stamp = root / ".complete"
    if not stamp.exists():
        print(f"  {name}: not installed; unpacking the package {package} into {root}", flush=True)
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for archive in _download(package, root):
            call(["dpkg-deb", "-x", str(archive), str(root)], package, DOWNLOAD_TIMEOUT_S)
            archive.unlink()
        stamp.touch()
    for path in (*root.glob(f"usr/*bin/{name}"), *root.glob(f"usr/lib/*/*/bin/{name}")):
        if path.exists():
            libraries = sorted({str(lib.parent) for lib in root.glob("usr/lib/**/*.so*")})
            return Program(path, {"LD_LIBRARY_PATH": ":".join(libraries)}, root)
    raise Missing(f"the package {package} has no program {name}; install it by hand")


def _download(package: str, into: Path) -> list[Path]:
    """The package and those of its dependencies that this system lacks."""
    if shutil.which("apt-get") is None:
        raise Missing(f"{package} is not installed, and there is no apt-get to get it with")
    simulate = ["apt-get", "-s", "install", "--no-install-recommends", package]

    def download() -> None:
        plan = call(simulate, package, DOWNLOAD_TIMEOUT_S)
        wanted = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        call(["apt-get", "download", *wanted], package, DOWNLOAD_TIMEOUT_S, cwd=into)

    with_fresh_lists(package, download)
    return sorted(into.glob("*.deb"))


def install(package: str) -> None:
    """For what does not work unpacked elsewhere. Only as root."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(f"install the package {package}, and try again")
    print(f"  installing the package {package}", flush=True)
    command = ["apt-get", "install", "-y", "--no-install-recommends", package]
    with_fresh_lists(package, lambda: call(command, package, DOWNLOAD_TIMEOUT_S))


def with_fresh_lists(package: str, work: Callable[[], object]) -> None:
    """Try; if that fails, with the newest lists of packages."""
    try:
        work()
    except Missing:
        if os.geteuid() != 0:
            raise
        call(["apt-get", "update"], package, DOWNLOAD_TIMEOUT_S)
        work()


def call(
    command: list[str],
    package: str,
    timeout_s: float,
    *,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> str:
    """What a command prints; Missing, with its last words, if it fails. `package` is what it is for."""
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
