"""Talking HTTP to an edge process, byte by byte where that matters."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from typing import Any

from tests.edge.conftest import Edge


@dataclass
class Reply:
    code: int
    headers: dict[str, str]
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.content)
        return found


def post(
    connection: http.client.HTTPConnection, body: bytes, path: str = "/", **headers: str
) -> tuple[int, dict[str, Any]]:
    reply = ask(connection, "POST", path, body, **headers)
    return reply.code, reply.body


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str = "/",
    body: bytes | None = None,
    **headers: str,
) -> Reply:
    connection.request(method, path, body, {k.replace("_", "-"): v for k, v in headers.items()})
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    return Reply(response.status, found, response.read())


def request(body: bytes = b"", *headers: str, line: str = "POST / HTTP/1.1") -> bytes:
    """A request as it goes over the wire, with its length unless it says how the body comes."""
    lines = [line, "host: x", *headers]
    if not any(h.lower().startswith(("content-length", "transfer-encoding")) for h in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def raw(web: Edge, data: bytes) -> bytes:
    """Everything that comes back for these bytes, with the sending side closed after them."""
    with web.connect() as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    answer = b""
    while chunk := sock.recv(65536):
        answer += chunk
    return answer


def read_reply(file: Any, *, headless: bool = False) -> Reply:
    """The next answer on a connection, from its `makefile("rb")`."""
    line = file.readline()
    assert line.startswith(b"HTTP/1.1 "), line
    headers: dict[str, str] = {}
    while text := file.readline().decode("latin-1").strip():
        name, _, value = text.partition(": ")
        headers[name] = value
    size = 0 if headless else int(headers.get("content-length", "0"))
    return Reply(int(line.split()[1]), headers, file.read(size))


def parse_replies(data: bytes) -> list[Reply]:
    """All answers in what a connection gave back, without interim ones."""
    import io

    file, found = io.BytesIO(data), []
    while file.tell() < len(data):
        reply = read_reply(file)
        if reply.code != 100:
            found.append(reply)
    return found
