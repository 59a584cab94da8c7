"""Engines that fail: each says that it is ready, and then what its plan's name asks for happens."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

from penstock.edge.control import Control


async def serve(control_fd: int) -> None:
    control = await Control.open(socket.socket(fileno=control_fd))
    message = await control.receive()
    assert message is not None
    plan = message["plan"]
    name = plan["flow"]["name"] if "flow" in plan else plan["name"]
    control.send({"type": "ready", "addresses": {}})
    if name == "says-why":
        control.send({"type": "failed", "error": "2 messages wait for far (it is down)"})
    await control.flush()
    if name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    control.close()
    sys.exit(1)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[2])))
