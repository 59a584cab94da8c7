"""The keeper: a process beside the edge that re-packs segments and applies retention.

It runs at low priority and takes nothing that a writer or a reader needs. An error with one topic
is logged and does not keep the others waiting; killing the keeper at any moment harms nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any

from penstock import logs
from penstock.edge.control import Control
from penstock.errors import NoSuchTopic, PenstockError
from penstock.limits import MAINTAIN_INTERVAL_S
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import Log
from penstock.log.names import TopicName

log = logs.get("keeper")

_NICE = 10
_STOP_S = 3.0
"""How long a stop waits for the topic in hand; re-packing may be cut short at any moment."""


async def keep(control: Control) -> None:
    """Serve one control socket until it says stop, or ends."""
    message = await control.receive()
    if message is None or message["type"] != "plan":
        return
    plan: dict[str, Any] = message["plan"]
    logs.configure(plan["log_level"], plan["log_format"], process="keeper")
    engine = EmbeddedLog(Path(plan["data_dir"]))
    stopping = asyncio.Event()
    work = asyncio.create_task(_maintain_for_ever(engine, stopping))
    control.send({"type": "ready", "addresses": {}})
    while (message := await control.receive()) is not None and message["type"] != "stop":
        pass
    stopping.set()
    done, _ = await asyncio.wait({work}, timeout=_STOP_S)
    control.close()
    if not done:
        os._exit(0)  # the thread that re-packs cannot be interrupted, and need not finish


async def _maintain_for_ever(engine: Log, stopping: asyncio.Event) -> None:
    while not stopping.is_set():
        for name in await _topics(engine):
            if stopping.is_set():
                return
            await _maintain(engine, name)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), MAINTAIN_INTERVAL_S)


async def _topics(engine: Log) -> list[TopicName]:
    try:
        return await asyncio.to_thread(engine.topics)
    except (PenstockError, OSError) as error:
        log.error("topics cannot be listed", error=logs.describe(error))
        return []


async def _maintain(engine: Log, name: TopicName) -> None:
    try:
        await asyncio.to_thread(engine.maintain, name)
    except NoSuchTopic:
        log.debug("topic was deleted meanwhile", topic=str(name))
    except (PenstockError, OSError) as error:
        log.error("topic cannot be maintained", topic=str(name), error=logs.describe(error))
    except Exception as error:
        log.exception("topic cannot be maintained", error, topic=str(name))


def main() -> None:
    parser = argparse.ArgumentParser(prog="penstock.supervisor.keeper")
    parser.add_argument("--control", type=int, required=True)
    arguments = parser.parse_args()
    os.nice(_NICE)
    # The supervisor says when to stop; a stray Ctrl-C is not for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    async def program() -> None:
        await keep(await Control.open(socket.socket(fileno=arguments.control)))

    asyncio.run(program())


if __name__ == "__main__":
    main()
