"""One engine process: what it says to the supervisor, and when it stops.

plan ─► settle topics, start Spark, settle what a crash left over, start the queries ─► ready ─► … ─► stop:
1. everything that has been accepted is carried through, or the time is up
2. the queries stop between two batches
3. Spark ends

The frames are those of `edge.control`, and one more from this side: `{"type": "settled", "frontiers":
{"TOPIC/PARTITION": offset}, "exceptions": bool}` whenever messages have ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

from penstock import logs
from penstock.edge.control import Control
from penstock.engine.running import Engine
from penstock.errors import PenstockError
from penstock.flow.decisions import Frontiers, dump_frontiers
from penstock.flow.wire import load_flow
from penstock.sinks import standard
from penstock.spark.modules import find_modules_beside

log = logs.get("engine")


async def serve(control_fd: int) -> int:
    """The life of an engine: its exit code."""
    control = await Control.open(socket.socket(fileno=control_fd))
    message = await control.receive()
    if message is None or message["type"] != "plan":
        return 1
    plan: dict[str, Any] = message["plan"]
    flow = load_flow(plan["flow"])
    logs.configure(flow.system.log_level, flow.system.log_format, process="engine")
    _print_to(plan["stdout"], announced=plan["announced"] or flow.commit == "atomic")
    find_modules_beside(flow.file)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the supervisor
    loop = asyncio.get_running_loop()

    def notify(frontiers: Frontiers, exceptions: bool) -> None:
        told = {
            "type": "settled",
            "frontiers": dump_frontiers(frontiers),
            "exceptions": exceptions,
        }
        loop.call_soon_threadsafe(control.send, told)

    engine = Engine(flow, notify, once=plan["once"], accept_loss=plan["accept_loss"])
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    control.send({"type": "recovering"})
    listening = asyncio.create_task(_obey(control, engine, stop))
    starting = asyncio.create_task(asyncio.to_thread(engine.start))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if starting.done():
        error = starting.exception()
        if error is not None:
            return await _failed(control, error)
        control.send({"type": "ready", "addresses": {}})
        work = engine.finish if plan["once"] else engine.wait
        done = asyncio.create_task(asyncio.to_thread(work))
        await asyncio.wait({done, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if done.done() and (broken := done.exception()) is not None:
            return await _failed(control, broken)
        await asyncio.to_thread(engine.stop)
    listening.cancel()
    await control.flush()
    control.close()
    # Spark's threads may hang on to the process; nothing is left to do.
    os._exit(0)


def _print_to(stdout: int | None, *, announced: bool) -> None:
    """Of an atomic flow nothing can be held back, so it does not wait until the flow is announced."""
    if stdout is not None:
        os.set_inheritable(stdout, False)  # it is not for Spark
    standard.redirect(stdout, announced=announced)


async def _failed(control: Control, error: BaseException) -> int:
    if not isinstance(error, PenstockError | OSError):
        log.exception("the engine fails", error)
    control.send({"type": "failed", "error": logs.describe(error)})
    await control.flush()
    control.close()
    os._exit(1)


async def _obey(control: Control, engine: Engine, stop: asyncio.Event) -> None:
    while (message := await control.receive()) is not None:
        if message["type"] == "stats":
            control.send({"type": "stats", "n": message["n"], "data": engine.stats()})
        elif message["type"] == "announced":
            standard.announce()
        elif message["type"] == "stop":
            break
    else:
        engine.abandon()  # the supervisor is gone: nobody waits for what is in flight
    stop.set()
