"""The admin API as a part of the supervisor's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator, Sequence

import uvicorn

from penstock.admin.app import build_app
from penstock.limits import MAX_ADMIN_REQUESTS
from penstock.log.interface import Log
from penstock.supervisor.overview import Overview

_STOP_S = 2
"""Requests under way when the server stops get this long."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are the supervisor's


class AdminServer:
    """Serves on bound sockets from `start` to `stop`."""

    def __init__(
        self, overview: Overview, log: Log, socks: Sequence[socket.socket], host: str
    ) -> None:
        """`host` is the host as configured, `socks` what it was bound to."""
        own_host = host.lower() if all(map(is_loopback, socks)) else None
        config = uvicorn.Config(
            build_app(overview, log, own_host=own_host),
            log_config=None,
            access_log=False,
            lifespan="off",
            limit_concurrency=MAX_ADMIN_REQUESTS,
            timeout_graceful_shutdown=_STOP_S,
            server_header=False,
        )
        self._server = _Server(config)
        self._socks = list(socks)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # Listening before the loop serves: whoever connects from now on waits, and is not refused.
        for sock in self._socks:
            sock.listen(MAX_ADMIN_REQUESTS)
        self._task = asyncio.create_task(self._server.serve(self._socks), name="admin")

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task})
        for sock in self._socks:
            sock.close()


def is_loopback(sock: socket.socket) -> bool:
    return ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
