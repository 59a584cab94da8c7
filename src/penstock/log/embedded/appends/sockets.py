"""Unix sockets in the data directory, for the processes of one user on one machine.

A path of a unix socket has at most 107 bytes; a data directory may be deeper than that. So sockets are
bound and found through `/proc/self/fd`, relative to their folder, and called by their name there.
"""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from pathlib import Path

FOLDER = "sockets"
_BACKLOG = 128


def new_name() -> str:
    return f"{os.getpid()}-{secrets.token_hex(6)}.sock"


def listen(data_dir: Path, name: str) -> socket.socket:
    """A listening socket that only this user may connect to. Sockets of dead processes are removed.

    It gets its name once it listens, so that whoever finds one that refuses knows that it is dead.
    """
    folder = data_dir / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    _remove_dead(folder)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(f"/proc/self/fd/{directory}/.{name}")
        (folder / f".{name}").chmod(0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        (folder / f".{name}").rename(folder / name)
    except OSError:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


def connect(data_dir: Path, name: str, timeout_s: float) -> socket.socket:
    """OSError if nobody listens there."""
    if os.sep in name or name.startswith("."):
        raise FileNotFoundError(f"not the name of a socket: {name!r}")
    directory = os.open(data_dir / FOLDER, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(f"/proc/self/fd/{directory}/{name}")
    except OSError:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


def remove(data_dir: Path, name: str) -> None:
    with suppress(OSError):
        (data_dir / FOLDER / name).unlink()


def _remove_dead(folder: Path) -> None:
    for path in folder.glob("*.sock"):
        try:
            connect(folder.parent, path.name, 1.0).close()
        except ConnectionRefusedError:
            with suppress(OSError):
                path.unlink()
        except OSError:
            continue
