"""What is checked of every request before any operation sees it: the host, the origin, the size.

The API listens on loopback by default and asks for no password, so a web page must not be able to
reach it through the browser of somebody on this machine:

- A page can point a name of its own at 127.0.0.1 (DNS rebinding). So on loopback the `Host` must be
  an address, `localhost`, or the name that the flow file binds: none of these can be rebound.
- A page can send simple requests to other sites. So an `Origin` that is not this host is refused.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.admin import problems
from penstock.limits import MAX_ADMIN_BODY_BYTES


class Door:
    """ASGI middleware. `own_host` is the configured host, or None when not bound on loopback."""

    def __init__(self, app: ASGIApp, own_host: str | None) -> None:
        self._app = app
        self._own_host = own_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await problems.answer(*refusal)(scope, receive, send)
            return
        await self._app(scope, _BoundedBody(receive).receive, send)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not host:
            return 400, "the request has no Host header"
        if self._own_host is not None and not self._known_host(host):
            return 403, (
                "the Host header names neither an address nor localhost nor the configured host; "
                "this API is for this machine only (see system.admin.bind)"
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit_netloc(origin) != host.lower():
            return 403, "requests from pages of other sites (the Origin header) are refused"
        length = headers.get("content-length", "0")
        if length.isascii() and length.isdigit() and int(length[:20]) > MAX_ADMIN_BODY_BYTES:
            return 413, _TOO_LARGE
        return None

    def _known_host(self, host: str) -> bool:
        name = host_name(host)
        if name in ("localhost", self._own_host):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


_TOO_LARGE = f"a request's body may have {MAX_ADMIN_BODY_BYTES} bytes"


class _BoundedBody:
    """Counts a body that came without its length, and stops it at the limit."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._seen_bytes = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen_bytes += len(message.get("body", b""))
            if self._seen_bytes > MAX_ADMIN_BODY_BYTES:
                # Of this kind, since the framework takes any other for a body that is no JSON.
                raise HTTPException(413, _TOO_LARGE)
        return message


def host_name(host: str) -> str:
    """A Host header without its port, in lower case; `[::1]:80` gives `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def urlsplit_netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None
