"""`penstock run --once`: carry through what the topics hold, and end. No receiver listens."""

from __future__ import annotations

import asyncio
import signal

from penstock import logs
from penstock.config.flow import Flow
from penstock.errors import Unavailable
from penstock.flow.wire import dump_flow
from penstock.log.embedded import EmbeddedLog
from penstock.supervisor.child import Child
from penstock.supervisor.datadir import DataDirLock, make_data_dir
from penstock.supervisor.planning import Runnable, check_restart, settle_topics

log = logs.get("supervisor")
ENGINE = "penstock.engine"


async def run_once(
    flow: Flow, parts: Runnable, *, accept_loss: bool = False, stdout: int | None = None
) -> bool:
    """Whether everything was carried through. False if a signal ended it before; Unavailable says what is
    left, and why. `stdout` is where sinks print that print to STDOUT."""
    if not parts.pipeline:
        why = ", ".join(gap.what for gap in parts.missing) or "the flow has no pipeline"
        raise Unavailable(f"nothing to run once: {why}")
    make_data_dir(flow.data_dir)
    lock = DataDirLock.take(flow.data_dir, flow.name)
    try:
        if not accept_loss:
            check_restart(flow, parts)
        settle_topics(flow, parts.receivers, EmbeddedLog(flow.data_dir))
        plan = {
            "flow": dump_flow(flow),
            "once": True,
            "accept_loss": accept_loss,
            "stdout": stdout,
            "announced": True,
        }
        engine = Child("engine", ENGINE, plan, once=True, stdout=stdout)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        engine.start()
        await engine.started
        waits = [asyncio.create_task(one.wait()) for one in (engine.finished, stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        clean = await engine.stop(flow.system.stop_timeout_s)
        if engine.gave_up is not None:
            raise Unavailable(f"engine: {engine.gave_up}")
        return clean and not stop.is_set()
    finally:
        lock.release()
