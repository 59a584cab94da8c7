"""`receiver.http`: HTTP/1.1 by httptools, answered once what was posted is durable.

Requests of one connection are answered in their order, whatever order they become durable in. A
request's body is taken whole before anything of it is stored, and stored whole or not at all.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable
from http import HTTPStatus

import httptools
import orjson

from penstock.edge.http_request import Gate, Refused, Request
from penstock.edge.intake import Intake
from penstock.errors import InvalidMessage, LogFull, OutOfOrder, PenstockError, TooLarge
from penstock.interceptors.chain import Chain
from penstock.interceptors.delimited import cut_lines
from penstock.interceptors.interface import Payloads
from penstock.interceptors.prefixed import cut_length_prefixed
from penstock.limits import (
    MAX_BATCH_EVENTS,
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_KNOWN_HEADS,
    MAX_PIPELINED,
)
from penstock.log.interface import Appended
from penstock.message import CONNECTION_STREAM, Batch
from penstock.peers.http import HttpServerOptions

_SWEEP_S = 1.0
_OK = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: "
_VARYING = {b"transfer-encoding", b"expect", b"upgrade"}
_HINTS = {405: b"allow: POST\r\n", 401: b"www-authenticate: Bearer\r\n"}


class HttpReceiver:
    """What all connections of one receiver share."""

    def __init__(
        self, options: HttpServerOptions, intake: Intake, make_chain: Callable[[], Chain]
    ) -> None:
        self.options = options
        self.intake = intake
        self.gate = Gate(options)
        self.make_chain = make_chain
        self.connections: set[HttpConnection] = set()
        self.heads: dict[bytes, tuple[Request, int]] = {}
        self.inflight_bytes = 0
        self.stopping = False
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Close what is idle; a connection with something under way closes after its answer."""
        self.stopping = True
        for connection in list(self.connections):
            connection.close_when_idle()

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(_SWEEP_S, self._sweep)
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)


class _Answer:
    """The place of one request's answer in the order of its connection."""

    __slots__ = ("batch", "close", "connection", "data")

    def __init__(self, connection: HttpConnection, *, close: bool) -> None:
        self.connection = connection
        self.close = close
        self.batch: Batch | None = None
        self.data: bytes | None = None

    def durable(self, result: Appended | PenstockError) -> None:
        assert self.batch is not None
        connection = self.connection
        connection.intake.settled(self.batch.count, result)
        connection.settle(self, _reply(self.batch, result, self.close))


class HttpConnection(asyncio.Protocol):
    def __init__(self, receiver: HttpReceiver) -> None:
        self._receiver = receiver
        self._options = receiver.options
        self.intake = receiver.intake
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._stream = ""
        self._seq = 0
        self._answers: deque[_Answer] = deque()
        self._deadline = 0.0
        self._paused = False
        self._closing = False
        self._half_closed = False
        self._last: tuple[Request, int] | None = None
        self._loop = asyncio.get_running_loop()
        self._begin()

    # --- The connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        receiver = self._receiver
        if len(receiver.connections) >= self._options.max_connections or receiver.stopping:
            self.intake.counters.refused += 1
            self._refuse(Refused(503, "too many connections", close=True))
            return
        receiver.connections.add(self)
        self.intake.counters.connections += 1
        self._stream = CONNECTION_STREAM + secrets.token_hex(8)
        self._deadline = self._loop.time() + self._options.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._release()
        if self in self._receiver.connections:
            self._receiver.connections.discard(self)
            self.intake.counters.connections -= 1
        self._transport = None

    def data_received(self, data: bytes) -> None:
        if self._closing or (not self._in_request and self._take_known(data)):
            return
        if self._in_request or not self._answers:
            self._deadline = self._loop.time() + (
                self._options.body_timeout_s if self._request else self._options.header_timeout_s
            )
        fresh = not self._in_request
        try:
            self._parser.feed_data(data)
            if fresh and self._last is not None:
                self._remember(data, *self._last)
        except httptools.HttpParserUpgrade:
            self._refuse(Refused(400, "no upgrade is offered here", close=True))
        except httptools.HttpParserCallbackError as error:
            cause = error.__context__
            if isinstance(cause, Refused):
                self._refuse(cause)
            else:
                raise
        except httptools.HttpParserError as error:
            self._refuse(Refused(400, f"not HTTP/1.1: {error}", close=True))

    def _remember(self, data: bytes, request: Request, length: int) -> None:
        """After a read that held one request and nothing else."""
        self._last = None
        at = data.find(b"\r\n\r\n") + 4
        heads = self._receiver.heads
        if len(data) == at + length and not self._in_request:
            if len(heads) >= MAX_KNOWN_HEADS:
                heads.clear()
            heads[data[:at]] = (request, length)

    def _take_known(self, data: bytes) -> bool:
        """One whole request whose head has been parsed before, byte for byte: no need to again.

        A head is remembered only if it said how long its body is and left the connection open, so
        the parser stands between two requests before and after.
        """
        at = data.find(b"\r\n\r\n") + 4
        known = self._receiver.heads.get(data[:at])
        if known is None:
            return False
        request, length = known
        if len(data) != at + length or self._receiver.stopping:
            return False
        answer = _Answer(self, close=False)
        self._answers.append(answer)
        try:
            self._take(request, data[at:], answer)
        except Refused as error:
            self.settle(answer, _error(error.code, error.reason, close=False))
        return True

    def eof_received(self) -> bool:
        self._half_closed = True  # what is under way is still answered
        return bool(self._answers)

    def check_time(self, now: float) -> None:
        if self._answers or now < self._deadline or self._transport is None:
            return
        if self._in_request:
            self._refuse(Refused(408, "the request did not come in time", close=True))
        else:
            self._transport.close()

    def close_when_idle(self) -> None:
        if not self._answers and not self._in_request and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- The parser's calls ---------------------------------------------------------------------

    def _begin(self) -> None:
        self._in_request = False
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0
        self._request: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._refusal: Refused | None = None

    def on_message_begin(self) -> None:
        self._in_request = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._count_header(len(name) + len(value))
        if len(self._headers) > MAX_HEADERS:
            raise Refused(431, f"more than {MAX_HEADERS} header fields", close=True)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > MAX_HEADER_BYTES:
            raise Refused(431, f"headers of more than {MAX_HEADER_BYTES} bytes", close=True)

    def on_headers_complete(self) -> None:
        found = dict(self._headers)
        try:
            self._request = self._receiver.gate.admit(
                self._parser.get_method(), self._target, self._headers
            )
            length = found.get(b"content-length", b"0")
            if length.isdigit() and int(length) > self._options.max_body_bytes:
                raise Refused(
                    413, f"a body has at most {self._options.max_body_bytes} bytes", close=True
                )
        except Refused as refusal:
            expects = b"expect" in found
            if refusal.close or expects:
                raise Refused(refusal.code, refusal.reason, close=True) from None
            self._refusal = refusal  # the body is read and dropped, so that the connection lives
            return
        if found.get(b"expect", b"").lower() == b"100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._options.max_body_bytes:
            raise Refused(
                413, f"a body has at most {self._options.max_body_bytes} bytes", close=True
            )
        if self._refusal is None:
            self._body.append(body)
            self._receiver.inflight_bytes += len(body)
            if self._receiver.inflight_bytes > self._options.max_inflight_bytes:
                raise Refused(503, "too much is being received; try again", close=True)

    def on_message_complete(self) -> None:
        request, refusal = self._request, self._refusal
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        head = self._parser.get_method() == b"HEAD"
        names = {name for name, _ in self._headers}
        plain = b"content-length" in names and names.isdisjoint(_VARYING)
        keep = self._parser.should_keep_alive() and not self._receiver.stopping
        self._release()
        self._begin()
        answer = _Answer(self, close=not keep)
        self._answers.append(answer)
        try:
            if refusal is not None:
                raise refusal
            assert request is not None
            if keep and plain and request.stream is None:
                self._last = (request, len(body))
            self._take(request, body, answer)
        except Refused as error:
            data = _error(error.code, error.reason, answer.close)
            if head:
                data = data[: data.index(b"\r\n\r\n") + 4]
            self.settle(answer, data)
        if len(self._answers) >= MAX_PIPELINED and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _release(self) -> None:
        self._receiver.inflight_bytes -= sum(map(len, self._body))
        self._body = []

    # --- One request ----------------------------------------------------------------------------

    def _take(self, request: Request, body: bytes, answer: _Answer) -> None:
        if self.intake.behind:
            raise Refused(503, "the disk is behind; try again")
        payloads = self._cut(request, body)
        if payloads.count == 0:
            raise Refused(400, "there is no message in this body")
        if payloads.count > MAX_BATCH_EVENTS:
            raise Refused(413, f"a body has at most {MAX_BATCH_EVENTS} messages")
        stream, seq = request.stream, request.seq
        if stream is None:
            stream, seq = self._stream, self._seq
            self._seq += payloads.count
        batch = Batch(
            self.intake.peer,
            stream,
            seq,
            payloads.blob,
            payloads.lengths,
            meta=request.encoded_meta,
        )
        answer.batch = batch
        try:
            self.intake.submit(batch, answer.durable)
        except PenstockError as error:
            raise Refused(503, str(error)) from None

    def _cut(self, request: Request, body: bytes) -> Payloads:
        longest = self._options.max_message_bytes
        try:
            chain = self._receiver.make_chain()
            payloads = Payloads(body) if chain.is_identity else chain.feed(body)
            if request.framing == "lines":
                payloads = cut_lines(_whole(payloads), keep_empty=False, max_length=longest)
            elif request.framing == "length_prefixed":
                payloads = cut_length_prefixed(_whole(payloads), max_length=longest)
            largest = (
                len(payloads.blob)
                if payloads.lengths is None
                else int(payloads.lengths.max(initial=0))
            )
            if largest > longest:
                raise TooLarge(f"a message has at most {longest} bytes")
        except TooLarge as error:
            raise Refused(413, str(error)) from None
        except InvalidMessage as error:
            raise Refused(400, str(error)) from None
        return payloads

    # --- Answers --------------------------------------------------------------------------------

    def settle(self, answer: _Answer, data: bytes) -> None:
        answer.data = data
        answers, transport = self._answers, self._transport
        while answers and answers[0].data is not None:
            head = answers.popleft()
            assert head.data is not None
            if transport is None or transport.is_closing():
                continue
            transport.write(head.data)
            if head.close:
                self._closing = True
                transport.close()
        if self._paused and len(answers) < MAX_PIPELINED // 2 and transport is not None:
            self._paused = False
            if not transport.is_closing():
                transport.resume_reading()
        if not answers:
            self._deadline = self._loop.time() + self._options.idle_timeout_s
            if self._receiver.stopping or self._half_closed:
                self.close_when_idle()

    def _refuse(self, refusal: Refused) -> None:
        """Answer the request that is being read, after those before it, and close."""
        self._closing = True
        self._release()
        answer = _Answer(self, close=True)
        self._answers.append(answer)
        self.settle(answer, _error(refusal.code, refusal.reason, close=True))


def _whole(payloads: Payloads) -> bytes:
    return payloads.blob if isinstance(payloads.blob, bytes) else bytes(payloads.blob)


def _reply(batch: Batch, result: Appended | PenstockError, close: bool) -> bytes:
    if isinstance(result, Appended):
        name = f"{batch.peer}/{batch.stream}/"
        first = f"{name}{batch.seq}"
        if batch.lengths is None and not result.repeats and batch.stream[0] == CONNECTION_STREAM:
            body = f'{{"id":"{first}","status":"new"}}'.encode()  # nothing in it needs escaping
        else:
            body = orjson.dumps(_described(batch, result, name, first))
        tail = b"\r\nconnection: close\r\n\r\n" if close else b"\r\n\r\n"
        return b"%b%d%b%b" % (_OK, len(body), tail, body)
    codes: dict[type, int] = {LogFull: 507, OutOfOrder: 409}
    return _error(codes.get(type(result), 503), str(result), close)


def _described(batch: Batch, result: Appended, name: str, first: str) -> dict[str, object]:
    reply: dict[str, object] = {"id": first, "status": "new"}
    if batch.lengths is not None:
        last = f"{name}{batch.seq + batch.count - 1}"
        reply = {"first": first, "last": last, "count": batch.count, "status": "new"}
    if result.repeats:
        reply["repeats"] = result.repeats
    return reply


def _error(code: int, reason: str, close: bool) -> bytes:
    body = orjson.dumps({"status": "failed" if code >= 500 else "invalid", "reason": reason})
    retry = b"retry-after: 1\r\n" if code in (503, 507) else b""
    return b"".join(
        (
            b"HTTP/1.1 %d %b\r\n" % (code, HTTPStatus(code).phrase.encode()),
            b"content-type: application/json\r\n",
            retry,
            _HINTS.get(code, b""),
            b"connection: close\r\n" if close else b"",
            b"content-length: %d\r\n\r\n" % len(body),
            body,
        )
    )
