"""One edge process: recover its partitions, listen, take messages in, stop in order.

plan ─► recover every partition it owns ─► listen ─► ready ─► … ─► stop:
1. stop listening; idle connections close
2. what was read is made durable, here or by the process that owns its partition, and answered
3. what other processes still send for partitions of this one is made durable
4. the partitions are released
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from penstock import logs
from penstock.edge.control import Control, PartitionStats, WorkerStats
from penstock.edge.datagrams import DatagramReceiver, ask_for_buffer
from penstock.edge.http import HttpReceiver
from penstock.edge.intake import Intake
from penstock.edge.plan import EdgePlan, ReceiverPlan
from penstock.edge.streams import StreamReceiver
from penstock.errors import ConfigError, PenstockError, Unavailable
from penstock.interceptors.chain import Chain, chain_factory
from penstock.limits import LOCK_WAIT_S
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends.forwarder import Forwarder
from penstock.log.embedded.appends.server import AppendServer
from penstock.log.embedded.commits import FSYNC_BUCKETS_S
from penstock.log.embedded.writer import PartitionWriter
from penstock.peers.http import HttpReceiverOptions
from penstock.peers.options import TlsServerOptions
from penstock.peers.tcp import TcpReceiverOptions
from penstock.peers.udp import UdpReceiverOptions
from penstock.peers.unix import UnixReceiverOptions

log = logs.get("edge")
_BACKLOG = 4096


class Receiver(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def abort(self) -> None: ...


class Worker:
    def __init__(self, plan: EdgePlan) -> None:
        self._plan = plan
        self._log = EmbeddedLog(plan.data_dir)
        self._writers: dict[tuple[str, int], PartitionWriter] = {}
        self._intakes: dict[str, Intake] = {}
        self._appends = AppendServer(plan.data_dir, max_pending_bytes=plan.max_pending_bytes)
        self._forwarders: dict[tuple[str, int], Forwarder] = {}
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
            for partition in range(self._plan.process, partitions, self._plan.processes):
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
                receiver.name, partitions, dict(owned), self._plan.max_pending_bytes
            )

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
                web = HttpReceiver(http, intake, self._chain(plan, framed=True))
                return await self._serve(
                    web, web.connection, _tcp(http.bind, self._shared), http.tls
                )
            case "receiver.tcp":
                tcp = TcpReceiverOptions.model_validate(plan.options)
                lines = StreamReceiver(tcp, intake, self._chain(plan, framed=False))
                return await self._serve(
                    lines, lines.connection, _tcp(tcp.bind, self._shared), tcp.tls
                )
            case "receiver.udp":
                udp = UdpReceiverOptions.model_validate(plan.options)
                sock = _udp(udp.bind, self._shared)
                return self._drain(sock, plan, udp.recv_buffer_bytes, udp.max_datagram_bytes)
            case "receiver.unix":
                unix = UnixReceiverOptions.model_validate(plan.options)
                stream = unix.mode == "stream"
                sock = _unix(Path(unix.path), stream=stream, permissions=unix.permissions)
                self._sockets.append(Path(unix.path))
                if not stream:
                    return self._drain(sock, plan, unix.recv_buffer_bytes, unix.max_datagram_bytes)
                local = StreamReceiver(unix, intake, self._chain(plan, framed=False))
                return await self._serve(local, local.connection, sock, None)
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
        sock: socket.socket,
        tls: TlsServerOptions | None,
    ) -> str:
        loop = asyncio.get_running_loop()
        context = None if tls is None else _tls(tls)
        if sock.family == socket.AF_UNIX:
            server = await loop.create_unix_server(connection, sock=sock, backlog=_BACKLOG)
        else:
            server = await loop.create_server(connection, sock=sock, backlog=_BACKLOG, ssl=context)
        self._servers.append(server)
        self._receivers.append(receiver)
        receiver.start()
        return _text(sock)

    def _drain(
        self, sock: socket.socket, plan: ReceiverPlan, buffer_bytes: int, max_bytes: int
    ) -> str:
        ask_for_buffer(sock, buffer_bytes)
        receiver = DatagramReceiver(
            sock, self._intakes[plan.name], self._chain(plan, framed=True), max_bytes
        )
        self._receivers.append(receiver)
        receiver.start()
        return _text(sock)

    # --- Stop -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        for receiver in self._receivers:
            receiver.stop()
        for writer in self._writers.values():
            await writer.drain()
        for forwarder in self._forwarders.values():
            await forwarder.drain()
            forwarder.close()
        await self._appends.stop()
        # Answers are on their way once the transports have taken them: give the loop a turn.
        await asyncio.sleep(0)
        self.close()

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.abort()
        self._appends.abort()
        for forwarder in self._forwarders.values():
            forwarder.close()
        for writer in self._writers.values():
            writer.close()
        for path in self._sockets:
            with suppress(OSError):
                path.unlink()

    # --- What the supervisor asks for -----------------------------------------------------------

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


def _bind(kind: socket.SocketKind, address: Any, shared: bool) -> socket.socket:
    found = socket.getaddrinfo(
        address.host or None, address.port, type=kind, flags=socket.AI_PASSIVE
    )
    family, _, _, _, where = found[0]
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(where)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


def _tcp(address: Any, shared: bool) -> socket.socket:
    return _bind(socket.SOCK_STREAM, address, shared)


def _udp(address: Any, shared: bool) -> socket.socket:
    return _bind(socket.SOCK_DGRAM, address, shared)


def _unix(path: Path, *, stream: bool, permissions: int) -> socket.socket:
    """A listening path. What a dead process left there is replaced; a live one is not."""
    kind = socket.SOCK_STREAM if stream else socket.SOCK_DGRAM
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, kind) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
            else:
                raise Unavailable(f"{path} is in use by another process")
    sock = socket.socket(socket.AF_UNIX, kind)
    before = os.umask(0o777 & ~permissions)
    try:
        sock.bind(str(path))
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.setblocking(False)
    return sock


def _tls(options: TlsServerOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    newest = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
    context.minimum_version = newest[options.min_version]
    password = options.key_password.get_secret_value() if options.key_password else None
    try:
        context.load_cert_chain(options.cert, options.key.get_secret_value(), password)
        if options.client_ca is not None:
            context.load_verify_locations(options.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS: {options.cert} or its key cannot be used: {logs.describe(error)}"
        ) from None
    return context


def _text(sock: socket.socket) -> str:
    name = sock.getsockname()
    if isinstance(name, str):
        return name
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    control.send({"type": "ready", "addresses": worker.addresses})
    listening = asyncio.create_task(_obey(control, worker, stop))
    await stop.wait()
    await worker.stop()
    listening.cancel()
    control.close()
    return 0


async def _obey(control: Control, worker: Worker, stop: asyncio.Event) -> None:
    while (message := await control.receive()) is not None:
        if message["type"] == "stats":
            control.send({"type": "stats", "n": message["n"], "data": worker.stats()})
        elif message["type"] == "stop":
            break
    stop.set()
