"""Programs that receive over the connector protocol, each in a process of its own."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock import faults
from penstock.sdk import Fault, Round, TwoPhaseSink


class Process:
    """Runs `serve`, which listens at `port`, until it is killed."""

    def __init__(self, serve: Callable[[int], None], port: int) -> None:
        self._serve = serve
        self.port = port
        self.pid = 0
        self.start()

    def start(self) -> None:
        self.pid = os.fork()
        if not self.pid:
            try:
                self._serve(self.port)
            finally:
                os._exit(1)
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), "the program has ended"
                time.sleep(0.005)

    def kill(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0


class ToFile(TwoPhaseSink):
    """What is committed, appended to a file: a u32 length before each payload."""

    def deliver(self, messages: Round) -> None:
        data = b"".join(struct.pack(">I", len(one)) + one for one in messages.payloads())
        with open(self.folder / "out", "ab") as file:
            file.write(data)


def to_file(
    folder: Path, port: int, rules: Iterable[Fault] = (), kills: Iterable[faults.Rule] = ()
) -> Process:
    def serve(port: int) -> None:
        faults.arm(*kills)
        ToFile(folder, cookie="secret", faults=rules).listen("127.0.0.1", port)
        threading.Event().wait()

    return Process(serve, port)


def delivered(folder: Path) -> list[bytes]:
    path = folder / "out"
    data = path.read_bytes() if path.exists() else b""
    found = []
    while data:
        size = struct.unpack_from(">I", data)[0]
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def rounds_left(folder: Path) -> list[str]:
    """Data of rounds that nobody has decided."""
    return [path.name for path in (folder / "rounds").iterdir()]
