"""Real servers that remember what they were sent."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def eventually(what: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it becomes true."""
    deadline = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class StreamServer:
    """Takes connections, and keeps the bytes of each. With `answer`, says something about each line."""

    def __init__(
        self,
        place: tuple[str, int] | Path = ("127.0.0.1", 0),
        *,
        tls: ssl.SSLContext | None = None,
        answer: Callable[[bytes], bytes | None] | None = None,
    ) -> None:
        unix = isinstance(place, Path)
        self._listener = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(str(place) if unix else place)
        self._listener.listen()
        self._tls = tls
        self._answer = answer
        self._open: list[socket.socket] = []
        self.received: list[bytearray] = []  # one a connection
        self.ended: list[str] = []  # how: "closed" or "reset"
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    @property
    def port(self) -> int:
        found: int = self._listener.getsockname()[1]
        return found

    @property
    def data(self) -> bytes:
        return b"".join(map(bytes, self.received))

    def settle(self) -> None:
        """Until nothing more comes."""
        size = -1
        while size != len(self.data):
            size = len(self.data)
            time.sleep(0.1)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        kept = bytearray()
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            self.received.append(kept)
            line = b""
            while chunk := connection.recv(65536):
                kept += chunk
                if self._answer is not None:
                    *lines, line = (line + chunk).split(b"\n")
                    for one in lines:
                        said = self._answer(one)
                        if said is None:
                            connection.close()
                            return
                        connection.sendall(said)
            self.ended.append("closed")
        except OSError:
            self.ended.append("reset")
        finally:
            connection.close()

    def hang_up(self) -> None:
        """Close every connection; go on listening."""
        while self._open:
            one = self._open.pop()
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()


class DatagramServer:
    def __init__(self, place: tuple[str, int] | Path = ("127.0.0.1", 0)) -> None:
        unix = isinstance(place, Path)
        self._socket = socket.socket(socket.AF_UNIX if unix else socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._socket.bind(str(place) if unix else place)
        self.received: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        found: int = self._socket.getsockname()[1]
        return found

    def _serve(self) -> None:
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            if data == b"<close>":
                return
            self.received.append(data)

    def close(self) -> None:
        own = socket.socket(self._socket.family, socket.SOCK_DGRAM)
        own.sendto(b"<close>", self._socket.getsockname())
        own.close()
        self._thread.join(10)
        self._socket.close()


class Request:
    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body


class HttpServer:
    """Keeps requests, and answers each with what `answer` says: a code, or None to hang up."""

    def __init__(
        self,
        answer: Callable[[Request], int | None] = lambda _: 200,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        kept: list[Request] = []
        connections: set[object] = set()
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"] or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(self.command, self.path, headers, body)
                code = answer(request)
                with lock:
                    connections.add(self.client_address)
                    kept.append(request)
                if code is None:
                    self.close_connection = True
                    return
                self.send_response(code)
                said = b"" if code < 300 else b"<p>because</p>"
                self.send_header("content-length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_POST = do_PUT = do_PATCH = do_HEAD = _any

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.requests = kept
        self.connections = connections
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
