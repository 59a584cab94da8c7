"""The machine under the benchmark: which core does what, and how noisy it is right now.

Servers run on one core and load generators on another, so that a faster server is not slowed by its
own load, and so that "a core" means the same for everyone who is compared. Before each round the
machine is probed (a spin loop, small fdatasyncs); the probes are kept with the results, so that a
reader can tell a slow round from a slow program.
"""

from __future__ import annotations

import mmap
import os
import platform
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

KiB = 1024
MiB = 1024 * KiB

PROBE_SYNCS = 30
PROBE_SPINS = 200_000


@dataclass(frozen=True, slots=True)
class Cores:
    """One core for the server, another for everything that loads it."""

    server: int
    client: int

    @property
    def shared(self) -> bool:
        return self.server == self.client


def choose_cores() -> Cores:
    """The first two usable cores, on two physical ones if the machine says which are which."""
    usable = sorted(os.sched_getaffinity(0))
    server = usable[0]
    siblings = _siblings(server)
    apart = [cpu for cpu in usable[1:] if cpu not in siblings]
    return Cores(server, (apart or usable[1:] or usable)[0])


def _siblings(cpu: int) -> set[int]:
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    found: set[int] = set()
    with suppress(OSError, ValueError):
        for part in path.read_text().strip().split(","):
            first, _, last = part.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return found


def pin(cpu: int) -> None:
    """This thread, and every thread and process that it starts from now on."""
    os.sched_setaffinity(0, {cpu})


@contextmanager
def pinned(cpu: int) -> Iterator[None]:
    before = os.sched_getaffinity(0)
    pin(cpu)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def describe(folder: Path, cores: Cores) -> dict[str, object]:
    """What a reader of the numbers will want to know about where they come from."""
    model = "unknown"
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory_kb = 0
    with suppress(OSError):
        memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    disk = os.statvfs(folder)
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "server_core": cores.server,
        "client_core": cores.client,
        "cores_share_hardware": cores.client in _siblings(cores.server),
        "memory_mb": memory_kb // KiB,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "filesystem": _filesystem(folder),
        "disk_free_gb": round(disk.f_bavail * disk.f_frsize / 1e9, 1),
    }


def _filesystem(folder: Path) -> str:
    best, kind = "", "unknown"
    with suppress(OSError):
        for line in Path("/proc/mounts").read_text().splitlines():
            _, mount, name, *_ = line.split()
            inside = folder == Path(mount) or Path(mount) in folder.parents
            if inside and len(mount) >= len(best):
                best, kind = mount, name
    return kind


@dataclass(frozen=True, slots=True)
class Probe:
    """How the machine felt just before a round."""

    spin_ms: float
    fdatasync_p50_us: float
    fdatasync_max_us: float
    load: float


def probe(folder: Path, cores: Cores) -> dict[str, float]:
    with pinned(cores.server):
        begun = time.perf_counter()
        total = 0
        for number in range(PROBE_SPINS):
            total += number
        spin_ms = (time.perf_counter() - begun) * 1e3
        syncs = _small_syncs(folder)
    found = Probe(spin_ms, statistics.median(syncs), max(syncs), os.getloadavg()[0])
    return {name: round(value, 2) for name, value in asdict(found).items()}


def _small_syncs(folder: Path) -> list[float]:
    path = folder / "probe"
    block = b"p" * 4096
    times_us = []
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        for _ in range(PROBE_SYNCS):
            begun = time.perf_counter()
            os.write(handle, block)
            os.fdatasync(handle)
            times_us.append((time.perf_counter() - begun) * 1e6)
    finally:
        os.close(handle)
        path.unlink()
    return times_us


def warm_memory(folder: Path, cpu: int, size_bytes: int) -> None:
    """Have the page cache's next pages backed by real memory, for whoever writes files next.

    On a virtual machine the first touch of a page that the host has not backed yet, or has taken
    back while it was free, costs several times the write itself. Who pays for that would be
    chance; on a machine that has been busy for a while nobody does. A file that is written and
    deleted leaves just such pages behind, in the order in which the next file will get them.
    """
    with suppress(OSError, ValueError, IndexError):
        size_bytes = min(size_bytes, _available_bytes() // 2)
    block = bytes(MiB)
    path = folder / "warm"
    with pinned(cpu):
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            for _ in range(size_bytes // MiB):
                os.write(handle, block)
        finally:
            os.close(handle)
            path.unlink()


def _available_bytes() -> int:
    return int(Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]) * KiB


_PIECE_BYTES = 64 * MiB
_PIECE_S = 0.1
_MADV_POPULATE_WRITE = 23


@contextmanager
def warming(seconds: float) -> Iterator[None]:
    """The same for a longer time, for work that writes now and then: a host that takes back what is free does so after a
    second or two. So memory is held, and a piece of it let go ten times a second, for so many seconds at most."""
    pieces: list[mmap.mmap] = []
    with suppress(OSError, ValueError, IndexError):
        for _ in range(min(int(seconds / _PIECE_S), _available_bytes() // 4 // _PIECE_BYTES)):
            piece = mmap.mmap(-1, _PIECE_BYTES)
            piece.madvise(_MADV_POPULATE_WRITE)
            pieces.append(piece)
    over = threading.Event()

    def let_go() -> None:
        while pieces and not over.wait(_PIECE_S):
            pieces.pop().close()

    giver = threading.Thread(target=let_go, daemon=True)
    giver.start()
    try:
        yield
    finally:
        over.set()
        giver.join()
        for piece in pieces:
            piece.close()


def raw_write(folder: Path, cores: Cores, commit_bytes: int, total_bytes: int) -> float:
    """Bytes a second of plain sequential writes to a new file, with one fdatasync a commit.

    This is the disk's own ceiling for anything that promises durability: no checksums, no framing,
    no sockets. It runs on the server's core, in the server's folder.
    """
    filler = os.urandom(64 * KiB)  # not zeros: a disk may be quick about those
    block = memoryview((filler * (commit_bytes // len(filler) + 1))[:commit_bytes])
    path = folder / "raw"
    commits = max(3, total_bytes // commit_bytes)
    warm_memory(folder, cores.server, commits * commit_bytes)
    with pinned(cores.server):
        handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        try:
            begun = time.perf_counter()
            for _ in range(commits):
                written = 0
                while written < commit_bytes:
                    written += os.write(handle, block[written:])
                os.fdatasync(handle)
            seconds = time.perf_counter() - begun
        finally:
            os.close(handle)
            path.unlink()
    return commits * commit_bytes / seconds
