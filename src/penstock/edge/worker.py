"""One edge process: recover its partitions, listen, take messages in, stop in order.

plan ─► recover every partition it owns ─► listen ─► ready ─► … ─► stop:
1. stop listening; idle connections close
2. what was read is made durable, here or by the process that owns its partition, and answered; half
   a request has a moment to become a whole one
3. what other processes still send for partitions of this one is made durable
4. the partitions are released

A second signal skips what is left of steps 2 and 3.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from penstock import logs
from penstock.edge.connector import ConnectorReceiver
from penstock.edge.control import Control, PartitionStats, WorkerStats
from penstock.edge.datagrams import DatagramReceiver, ask_for_buffer
from penstock.edge.http import HttpReceiver
from penstock.edge.intake import Intake, Queue
from penstock.edge.listening import addresses_of, bind_tcp, bind_udp, bind_unix, tls_context
from penstock.edge.plan import EdgePlan, ReceiverPlan
from penstock.edge.streams import StreamReceiver
from penstock.edge.waiting import Waiting
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.flow.decisions import load_frontiers
from penstock.flow.finding import Finder
from penstock.flow.receipts import Receipts
from penstock.interceptors.chain import Chain, chain_factory
from penstock.limits import HEADER_TIMEOUT_S, LINGER_S, LOCK_WAIT_S, STOP_GRACE_S
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.forwarder import Forwarder
from penstock.log.embedded.appends.server import AppendServer
from penstock.log.embedded.commits import FSYNC_BUCKETS_S
from penstock.log.embedded.writer import PartitionWriter
from penstock.peers.connector import ConnectorReceiverOptions
from penstock.peers.http import HttpReceiverOptions
from penstock.peers.tcp import TcpReceiverOptions
from penstock.peers.udp import UdpReceiverOptions
from penstock.peers.unix import UnixReceiverOptions

log = logs.get("edge")
_BACKLOG = 4096
_POLL_S = 0.01


class Receiver(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None:
        """Take no more. What was taken is stored and answered; then its connection closes."""

    @property
    def idle(self) -> bool:
        """After `stop`: nobody is left to be answered."""

    def give_up(self) -> None:
        """Stop waiting for what others have not finished: tell them, and close."""

    def abort(self) -> None:
        """Close at once."""


class Worker:
    def __init__(self, plan: EdgePlan) -> None:
        self._plan = plan
        self._log = EmbeddedLog(plan.data_dir)
        self._writers: dict[tuple[str, int], PartitionWriter] = {}
        self._intakes: dict[str, Intake] = {}
        self._appends = AppendServer(plan.data_dir, max_pending_bytes=plan.max_pending_bytes)
        self._forwarders: dict[tuple[str, int], Forwarder] = {}
        self._queue = Queue()
        receipts = Receipts(plan.data_dir)
        self._waiting = Waiting(receipts, open=plan.engine)
        self._finder = Finder(self._log, receipts)
        self._receivers: list[Receiver] = []
        self._servers: list[asyncio.Server] = []
        self._sockets: list[Path] = []
        self.addresses: dict[str, str] = {}

    # --- Start ----------------------------------------------------------------------------------

    def recover(self) -> None:
        """Take the partitions; nothing listens before this is done."""
        for receiver in self._plan.receivers:
            name = TopicName.parse(receiver.topic)
            partitions = self._log.config(name).partitions
            owned: dict[int, PartitionWriter] = {}
            for partition in range(self._plan.process, partitions, receiver.processes):
                writer = self._writers.get((receiver.topic, partition))
                if writer is None:
                    writer = self._log.writer(
                        name,
                        partition,
                        socket_name=self._appends.socket_name,
                        wait_s=LOCK_WAIT_S,
                    )
                    self._writers[receiver.topic, partition] = writer
                    for corrupt in writer.corrupt:
                        log.error("corrupt batch", error=str(corrupt))
                owned[partition] = writer
            if not owned:
                raise Unavailable(f"{receiver.name}: this process owns no partition of {name}")
            self._intakes[receiver.name] = Intake(
                receiver.name,
                str(name),
                partitions,
                dict(owned),
                self._plan.max_pending_bytes,
                homes=self._log.homes(name),
                queue=self._queue,
            )
        self._waiting.recover()

    async def listen(self) -> None:
        for writer in self._writers.values():
            writer.start()
        owned = {(str(TopicName.parse(t)), p): w for (t, p), w in self._writers.items()}
        await self._appends.start(owned)
        for receiver in self._plan.receivers:
            self._intakes[receiver.name].others = self._others(receiver.topic)
            try:
                self.addresses[receiver.name] = await self._open(receiver)
            except OSError as error:
                where = receiver.options.get("bind") or receiver.options.get("path")
                raise Unavailable(
                    f"{receiver.name} cannot listen on {where}: {logs.describe(error)}"
                ) from error

    def _others(self, topic: str) -> dict[int, Forwarder]:
        """Ways to the partitions of a topic that other processes own."""
        name = TopicName.parse(topic)
        found = {}
        for partition in range(self._log.config(name).partitions):
            if (topic, partition) in self._writers:
                continue
            if (topic, partition) not in self._forwarders:
                forwarder = Forwarder(self._log.place(name, partition))
                self._forwarders[topic, partition] = forwarder
            found[partition] = self._forwarders[topic, partition]
        return found

    async def _open(self, plan: ReceiverPlan) -> str:
        intake = self._intakes[plan.name]
        match plan.module:
            case "receiver.http":
                http = HttpReceiverOptions.model_validate(plan.options)
                first = plan.interceptors[0][0] if plan.interceptors else None
                chain = self._chain(plan, framed=True)
                web = HttpReceiver(http, intake, chain, self._waiting, self._finder, first)
                tls = None if http.tls is None else tls_context(plan.name, http.tls)
                socks = bind_tcp(http.bind, self._shared)
                return await self._serve(web, web.connection, socks, tls, http.header_timeout_s)
            case "receiver.tcp":
                tcp = TcpReceiverOptions.model_validate(plan.options)
                chain = self._chain(plan, framed=False)
                lines = StreamReceiver(tcp, intake, chain, self._waiting)
                tls = None if tcp.tls is None else tls_context(plan.name, tcp.tls)
                socks = bind_tcp(tcp.bind, self._shared)
                return await self._serve(lines, lines.connection, socks, tls)
            case "receiver.connector":
                connector = ConnectorReceiverOptions.model_validate(plan.options)
                if plan.interceptors:
                    raise ConfigError(
                        f"{plan.name}: receiver.connector takes messages as they are sent; "
                        "leave `interceptors` out"
                    )
                extensions = ConnectorReceiver(connector, intake)
                tls = None if connector.tls is None else tls_context(plan.name, connector.tls)
                socks = bind_tcp(connector.bind, self._shared)
                return await self._serve(extensions, extensions.connection, socks, tls)
            case "receiver.udp":
                udp = UdpReceiverOptions.model_validate(plan.options)
                socks = bind_udp(udp.bind, self._shared)
                return self._drain(socks, plan, udp.recv_buffer_bytes, udp.max_datagram_bytes)
            case "receiver.unix":
                unix = UnixReceiverOptions.model_validate(plan.options)
                stream = unix.mode == "stream"
                sock = bind_unix(Path(unix.path), stream=stream, permissions=unix.permissions)
                self._sockets.append(Path(unix.path))
                if not stream:
                    return self._drain(
                        [sock], plan, unix.recv_buffer_bytes, unix.max_datagram_bytes
                    )
                chain = self._chain(plan, framed=False)
                local = StreamReceiver(unix, intake, chain, self._waiting)
                return await self._serve(local, local.connection, [sock])
        raise ConfigError(f"{plan.name}: {plan.module} is not there yet in this version")

    @property
    def _shared(self) -> bool:
        return self._plan.processes > 1

    def _chain(self, plan: ReceiverPlan, *, framed: bool) -> Callable[[], Chain]:
        return chain_factory(plan.interceptors, framed)

    async def _serve(
        self,
        receiver: Receiver,
        connection: Callable[[], Any],
        socks: list[socket.socket],
        tls: ssl.SSLContext | None = None,
        handshake_s: float = HEADER_TIMEOUT_S,
    ) -> str:
        loop = asyncio.get_running_loop()
        for sock in socks:
            if sock.family == socket.AF_UNIX:
                server = await loop.create_unix_server(connection, sock=sock, backlog=_BACKLOG)
            else:
                server = await loop.create_server(
                    connection,
                    sock=sock,
                    backlog=_BACKLOG,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else handshake_s,
                )
            self._servers.append(server)
        self._receivers.append(receiver)
        receiver.start()
        return addresses_of(socks)

    def _drain(
        self, socks: list[socket.socket], plan: ReceiverPlan, buffer_bytes: int, max_bytes: int
    ) -> str:
        for sock in socks:
            ask_for_buffer(sock, buffer_bytes)
            receiver = DatagramReceiver(
                sock, self._intakes[plan.name], self._chain(plan, framed=True), max_bytes
            )
            self._receivers.append(receiver)
            receiver.start()
        return addresses_of(socks)

    # --- Stop -----------------------------------------------------------------------------------

    async def stop(self, hurry: asyncio.Event) -> bool:
        """Whether everyone was served to the end; `hurry` cuts it short."""
        for server in self._servers:
            server.close()
        for receiver in self._receivers:
            receiver.stop()
        grace_s = min(STOP_GRACE_S, self._plan.stop_timeout_s / 2)
        if not await self._idle(grace_s, hurry):
            self._waiting.give_up()
            for receiver in self._receivers:
                receiver.give_up()
        served = await self._idle(LINGER_S, hurry)
        hurried = asyncio.create_task(hurry.wait())
        settled = asyncio.create_task(self._settle())
        await asyncio.wait({settled, hurried}, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        settled.cancel()
        self.close()
        return served

    async def _settle(self) -> bool:
        for writer in self._writers.values():
            await writer.drain()
        for forwarder in self._forwarders.values():
            await forwarder.drain()
            forwarder.close()
        await self._appends.stop()
        return True

    async def _idle(self, timeout_s: float, hurry: asyncio.Event) -> bool:
        """Wait until all connections have ended; False if they have not in this time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not all(receiver.idle for receiver in self._receivers):
            if hurry.is_set() or loop.time() > end:
                return False
            await asyncio.sleep(_POLL_S)
        return True

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.abort()
        self._waiting.close()
        self._appends.abort()
        for forwarder in self._forwarders.values():
            forwarder.close()
        for writer in self._writers.values():
            writer.close()
        for path in self._sockets:
            with suppress(OSError):
                path.unlink()

    # --- What the supervisor asks for, and tells ------------------------------------------------

    def settled(self, frontiers: dict[str, int], *, exceptions: bool) -> None:
        self._waiting.settled(load_frontiers(frontiers), exceptions=exceptions)

    def stats(self) -> WorkerStats:
        peers: dict[str, Any] = {}
        for name, intake in self._intakes.items():
            c = intake.counters
            peers[name] = {
                "in": 0,
                "out": c.out,
                "err": c.err,
                "send": c.send,
                "recv": c.recv,
                "recv_bytes": c.recv_bytes,
                "connections": c.connections,
                "refused": c.refused,
            }
        partitions = {f"{t}/{p}": _partition_stats(w) for (t, p), w in self._writers.items()}
        return {"peers": peers, "partitions": partitions, "rss_bytes": _rss_bytes()}


def _partition_stats(writer: PartitionWriter) -> PartitionStats:
    commits = writer.commits
    bounds: list[float | None] = [*FSYNC_BUCKETS_S, None]
    return {
        "end": writer.end,
        "pending_messages": writer.pending_messages,
        "pending_bytes": writer.pending_bytes,
        "bytes_written": commits.bytes_written,
        "commits": commits.count,
        "fsync_seconds_sum": commits.fsync_seconds_sum,
        "fsync_buckets": list(zip(bounds, commits.fsync_buckets, strict=True)),
    }


def _rss_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


async def serve(control_fd: int) -> int:
    """The life of a worker: its exit code."""
    control = await Control.open(socket.socket(fileno=control_fd))
    message = await control.receive()
    if message is None or message["type"] != "plan":
        return 1
    plan = EdgePlan.from_json(message["plan"])
    logs.configure(level=plan.log_level, log_format=plan.log_format, process=f"edge-{plan.process}")
    worker = Worker(plan)
    try:
        control.send({"type": "recovering"})
        await asyncio.to_thread(worker.recover)
        await worker.listen()
    except (PenstockError, OSError) as error:
        control.send({"type": "failed", "error": str(error)})
        await control.flush()
        control.close()
        return 1
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop.add_signal_handler(signal.SIGTERM, on_signal)
    loop.add_signal_handler(signal.SIGINT, on_signal)
    # What is there now lives as long as the process. Collections that looked at it again and again took a
    # tenth of a busy core.
    gc.collect()
    gc.freeze()
    control.send({"type": "ready", "addresses": worker.addresses})
    listening = asyncio.create_task(_obey(control, worker, stop))
    await stop.wait()
    await worker.stop(hurry)
    listening.cancel()
    control.close()
    return 1 if hurry.is_set() else 0


async def _obey(control: Control, worker: Worker, stop: asyncio.Event) -> None:
    while (message := await control.receive()) is not None:
        if message["type"] == "stats":
            control.send({"type": "stats", "n": message["n"], "data": worker.stats()})
        elif message["type"] == "settled":
            worker.settled(message["frontiers"], exceptions=message["exceptions"])
        elif message["type"] == "stop":
            break
    stop.set()
