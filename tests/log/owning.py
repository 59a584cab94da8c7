"""A process that owns a partition and serves other processes, as an edge process does; to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.limits import MAX_PENDING_BYTES
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.server import AppendServer

TOPIC = TopicName.parse("orders.web")


class Owner:
    """The process, seen from a test."""

    def __init__(self, data_dir: Path, *, max_pending_bytes: int = MAX_PENDING_BYTES) -> None:
        self._command = [sys.executable, "-m", "tests.log.owning", str(data_dir)]
        self._command.append(str(max_pending_bytes))
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self) -> int:
        assert self.process.stdout is not None
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


async def own(data_dir: str, max_pending_bytes: int) -> None:
    server = AppendServer(data_dir, max_pending_bytes=max_pending_bytes)
    log = EmbeddedLog(data_dir)
    writer = log.writer(TOPIC, 0, socket_name=server.socket_name, wait_s=10)
    writer.start()
    await server.start({(str(TOPIC), 0): writer})
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print("ready", flush=True)
    await stop.wait()
    await server.stop()
    await writer.drain()
    writer.close()


if __name__ == "__main__":
    os.setpgid(0, 0)
    asyncio.run(own(sys.argv[1], int(sys.argv[2])))
