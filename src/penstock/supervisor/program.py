"""`penstock run`, after the flow file is read: start everything, watch it, stop it in order.

Start
1. take the data directory; see whether a flow that was edited can carry on; settle addresses and topics: what
   cannot work is refused here
2. the admin API, which says that nothing is ready yet
3. the engine: it settles what a crash left over, and its queries run
4. the edge processes; they recover their partitions and listen
5. the keeper, and the line `ready`

Stop (SIGTERM, SIGINT or SIGHUP; a second one kills at once)
1. the edge processes finish what they have taken in; after `stop_timeout_s` they are killed
2. the engine carries through what they took in, as far as that goes in the same time
3. the keeper, the admin API, the data directory

If the supervisor itself is killed, its processes see the end of their control sockets and stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from penstock import logs
from penstock.config.flow import Flow
from penstock.edge.listening import addresses_of
from penstock.errors import Unavailable, UnknownMessage
from penstock.flow.finding import Finder
from penstock.flow.receipt import Receipt
from penstock.flow.receipts import Receipts
from penstock.flow.wire import dump_flow
from penstock.limits import STATS_INTERVAL_S
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import Log
from penstock.log.names import TopicName
from penstock.message import EventId
from penstock.supervisor.addresses import Ports, bind_listeners
from penstock.supervisor.child import Child, ChildState
from penstock.supervisor.datadir import DataDirLock, make_data_dir
from penstock.supervisor.overview import Overview, ProcessView
from penstock.supervisor.planning import Runnable, check_restart, edge_plans, settle_topics
from penstock.supervisor.totals import Snapshot, Totals

log = logs.get("supervisor")

_KEEPER_STOP_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class AdminService(Protocol):
    async def start(self) -> None: ...

    async def stop(self) -> None: ...


OpenAdmin = Callable[[Overview, Log, Sequence[socket.socket], str], AdminService]
"""Makes the admin API for a bound socket and the host it was configured with."""

Show = Callable[[Overview, str], Coroutine[Any, Any, None]]
"""Shows people a running flow until it is cancelled. It is given the line that says `ready`."""


class Supervisor:
    """One run of one flow. `announce` is given the line that says that everything is ready."""

    def __init__(
        self,
        flow: Flow,
        parts: Runnable,
        *,
        open_admin: OpenAdmin,
        announce: Callable[[str], None],
        show: Show | None = None,
        accept_loss: bool = False,
        stdout: int | None = None,
    ) -> None:
        """`stdout` is where sinks print that print to STDOUT; None: among the log lines."""
        self._accept_loss = accept_loss
        self._stdout = stdout
        self._flow = flow
        self._parts = parts
        self._open_admin = open_admin
        self._announce = announce
        self._show = show
        self._edges: list[Child] = []
        self._engine: Child | None = None
        self._keeper: Child | None = None
        self._totals = Totals()
        self._signals = 0
        self._stopping = asyncio.Event()
        self._admin_address: str | None = None
        self._ready_line = ""
        self._engine_plan: dict[str, Any] = {}
        self._finder: Finder | None = None

    async def run(self) -> bool:
        """From start to stop; whether the stop was clean. Raises PenstockError if it cannot start."""
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
        async with contextlib.AsyncExitStack() as stack:
            make_data_dir(self._flow.data_dir)
            lock = DataDirLock.take(self._flow.data_dir, self._flow.name)
            stack.callback(lock.release)
            if not self._accept_loss:
                check_restart(self._flow, self._parts)
            await self._prepare(stack)
            return await self._supervise()

    # --- What others may see (Overview) ---------------------------------------------------------

    @property
    def flow(self) -> str:
        return self._flow.name

    def not_ready(self) -> str | None:
        if self._stopping.is_set():
            return "the flow is stopping"
        if not self._edges:
            return "the flow is starting"
        for child in self._edges:
            if child.state is ChildState.WAITING:
                return f"{child.name} died ({child.last_error}) and is about to be started again"
            if child.state is not ChildState.READY:
                return f"{child.name} is {child.state}"
        return None

    def processes(self) -> list[ProcessView]:
        return [
            ProcessView(
                child.name,
                child.state,
                child.pid,
                child.restarts,
                child.state_since,
                child.last_error,
            )
            for child in self._children()
        ]

    def _children(self) -> list[Child]:
        others = (self._engine, self._keeper)
        return [*self._edges, *(child for child in others if child is not None)]

    def find_receipt(self, event: EventId, at: tuple[int, int] | None) -> Receipt:
        for one in self._parts.receivers:
            if one.name == event.peer and one.topic is not None and self._finder is not None:
                return self._finder.receipt(TopicName.parse(one.topic), event, at)
        raise UnknownMessage(f"{event.peer} is no receiver of this flow")

    async def collect(self) -> Snapshot:
        asked = [*self._edges, *([] if self._engine is None else [self._engine])]
        answers = await asyncio.gather(*(child.stats() for child in asked))
        for child, stats in zip(asked, answers, strict=True):
            # One that died while it was asked has been counted among the dead already.
            if stats is not None and child.state is ChildState.READY:
                self._totals.update(child.name, stats)
        snapshot = self._totals.snapshot()
        snapshot.rss_bytes["supervisor"] = _rss_bytes()
        return snapshot

    # --- Start ----------------------------------------------------------------------------------

    async def _prepare(self, stack: contextlib.AsyncExitStack) -> None:
        flow, receivers = self._flow, self._parts.receivers
        engine = EmbeddedLog(flow.data_dir)
        stack.callback(engine.close)
        self._finder = Finder(engine, Receipts(flow.data_dir))
        ports = Ports()
        stack.callback(ports.close)
        admin = flow.system.admin
        listeners = bind_listeners("admin", admin.bind) if admin.enabled else []
        for listener in listeners:
            stack.callback(listener.close)
        partitions = settle_topics(flow, receivers, engine)
        settles = bool(self._parts.pipeline)
        plans = edge_plans(flow, receivers, partitions, ports, engine=settles)
        if listeners:
            self._admin_address = addresses_of(listeners)
            service = self._open_admin(self, engine, listeners, admin.bind.host)
            await service.start()
            stack.push_async_callback(service.stop)
            if not admin.bind.loopback:
                log.warning(
                    "the admin API asks for no password and can be reached from other machines",
                    address=self._admin_address,
                )
        if settles:
            self._engine_plan |= {
                "flow": dump_flow(flow),
                "once": False,
                "accept_loss": self._accept_loss,
                "stdout": self._stdout,
                "announced": False,
            }
            self._engine = Child(
                "engine",
                "penstock.engine",
                self._engine_plan,
                on_death=self._totals.retire,
                on_message=self._pass_on,
                stdout=self._stdout,
            )
        self._edges = [
            Child(
                f"edge-{plan.process}",
                "penstock.edge",
                plan.to_json(),
                on_death=self._totals.retire,
            )
            for plan in plans
        ]
        keeper_plan = {
            "data_dir": str(flow.data_dir),
            "log_level": flow.system.log_level,
            "log_format": flow.system.log_format,
        }
        self._keeper = Child("keeper", "penstock.supervisor.keeper", keeper_plan)

    def _pass_on(self, message: dict[str, Any]) -> None:
        """What the engine has settled, to the processes where senders wait for it."""
        for child in self._edges:
            child.send(message)

    async def _supervise(self) -> bool:
        assert self._keeper is not None
        try:
            if self._engine is not None:
                self._engine.start()
                await self._all_ready([self._engine])
            addresses: dict[str, str] | None = None
            if not self._stopping.is_set():
                for child in self._edges:
                    child.start()
                addresses = await self._all_ready(self._edges)
            if addresses is not None:
                # Not before: it takes partitions that nobody writes, to seal what is idle.
                self._keeper.start()
                self._say_ready(addresses)
                await self._watch()
        finally:
            # Also when the start failed: nothing is left behind.
            clean = await self._stop()
        return clean

    async def _all_ready(self, children: list[Child]) -> dict[str, str] | None:
        """The addresses of all their receivers; None if a signal came first."""
        ready = asyncio.gather(*(child.started for child in children))
        stop = asyncio.create_task(self._stopping.wait())
        either: set[asyncio.Future[Any]] = {ready, stop}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                return None
            return {name: place for found in await ready for name, place in found.items()}
        finally:
            stop.cancel()
            ready.cancel()
            with contextlib.suppress(asyncio.CancelledError, Unavailable):
                await ready

    def _say_ready(self, addresses: dict[str, str]) -> None:
        words = [
            f"{one.name}={addresses[one.name]}"
            for one in self._parts.receivers
            if one.name in addresses
        ]
        if self._admin_address is not None:
            words.append(f"admin={self._admin_address}")
        log.info("flow is ready", flow=self.flow, processes=len(self._edges))
        self._ready_line = " ".join(["ready", *words])
        self._announce(self._ready_line)
        self._engine_plan["announced"] = True  # for its next life
        if self._engine is not None:
            self._engine.send({"type": "announced"})

    async def _watch(self) -> None:
        if self._show is None:
            return await self._count()
        view = asyncio.create_task(self._show(self, self._ready_line))
        try:
            await self._stopping.wait()
        finally:
            view.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await view

    async def _count(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), STATS_INTERVAL_S)
            if not self._stopping.is_set():
                await self.collect()

    # --- Stop -----------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        self._signals += 1
        if self._signals == 1:
            log.info("stopping", signal=signal.Signals(number).name)
            self._stopping.set()
            return
        log.warning("stopping at once", signal=signal.Signals(number).name)
        for child in self._children():
            child.kill()

    async def _stop(self) -> bool:
        self._stopping.set()
        timeout_s = self._flow.system.stop_timeout_s
        clean = await asyncio.gather(*(child.stop(timeout_s) for child in self._edges))
        if self._engine is not None:
            clean.append(await self._engine.stop(timeout_s))
        if self._keeper is not None:
            await self._keeper.stop(_KEEPER_STOP_S)
        log.info("stopped", flow=self.flow, clean=all(clean))
        return all(clean)


def _rss_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
