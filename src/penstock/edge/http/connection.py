"""One HTTP connection: bytes in, requests out, answers in the order of the requests.

    between requests ──► head ──► body ──► between requests …
            └──────────────┴────────┴────► deaf: the last answer is under way; what comes is dropped

A body is taken whole before anything of it is stored. The bytes may come in any pieces: what is answered
does not depend on them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from penstock.edge.http.answer import CONTINUE
from penstock.edge.http.chunks import ChunkedBody
from penstock.edge.http.express import Express
from penstock.edge.http.head import CHUNKED, HEAD_END, TOO_LONG, Refused, check_beginning
from penstock.edge.http.posting import Answer, Posting, is_plain
from penstock.edge.http.request import Opening, Post, too_large
from penstock.limits import LINGER_BYTES, LINGER_S, MAX_HEADER_BYTES, MAX_PIPELINED
from penstock.message import connection_stream

if TYPE_CHECKING:
    from penstock.edge.http.receiver import HttpReceiver

_SMALL_BYTES = 1024
"""Pieces of a body that are put together as they come: each by itself would cost more than it holds."""


class HttpConnection(asyncio.Protocol):
    def __init__(self, receiver: HttpReceiver) -> None:
        self.receiver = receiver
        self._options = receiver.options
        self._idle_timeout_s = receiver.options.idle_timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stream = ""
        self._express: Express
        self._seq = 0
        self._answers: deque[Answer] = deque()
        self._head = bytearray()  # of a head that has come in part
        self._opening: Opening | None = None  # whose body is being read
        self._missing = 0  # of that body, if its length is known
        self._chunks: ChunkedBody | None = None
        self._body: list[bytes | bytearray] = []
        self._body_bytes = 0
        self._rest = b""  # not looked at yet: too many requests wait for an answer
        self._held = 0  # what the receiver has accounted for
        self._deadline = 0.0
        self._deaf = False
        self._lingering = False
        self._dropped = 0
        self._paused = False
        self._clogged = False  # the client does not read its answers
        self._half_closed = False

    # --- The connection ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        receiver = self.receiver
        if len(receiver.connections) >= self._options.max_connections or receiver.stopping:
            receiver.intake.counters.refused += 1
            self._deaf = True
            reason = "the receiver stops" if receiver.stopping else "too many connections"
            answer = receiver.answers.refused(Refused(503, reason), None, keep=False)
            self._transport.write(answer)
            self._transport.close()
            return
        receiver.connections.add(self)
        receiver.intake.counters.connections += 1
        self._stream = connection_stream()
        self._express = Express(self, self._stream)
        self._deadline = self._loop.time() + self._options.header_timeout_s

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = True
        self._release()
        for answer in self._answers:
            if answer.wait is not None:
                self.receiver.waiting.cancel(answer.wait)
        if self in self.receiver.connections:
            self.receiver.connections.discard(self)
            self.receiver.intake.counters.connections -= 1
        self._transport = None

    def eof_received(self) -> bool:
        """Half a request is none; what is under way is still answered."""
        self._half_closed = True
        return bool(self._answers or self._rest) and not self._lingering

    def pause_writing(self) -> None:
        self._clogged = True
        self._deadline = self._loop.time() + self._options.idle_timeout_s
        self._pace()

    def resume_writing(self) -> None:
        self._clogged = False
        self._deadline = self._loop.time() + self._options.idle_timeout_s
        self._pace()

    def check_time(self, now: float) -> None:
        transport = self._transport
        if transport is None or now < self._deadline:
            return
        if self._clogged or self._lingering:
            transport.abort()
        elif self._deaf or self._paused:
            self._deadline = now + self._options.idle_timeout_s  # it is we who are slow
        elif self._in_request:
            self._refuse(Refused(408, "the request did not come in time", close=True))
        elif not self._answers:
            transport.close()

    def close_when_idle(self) -> None:
        if self._answers or self._rest or self._lingering:
            return
        if self._transport is not None and (self._half_closed or not self._in_request):
            self._deaf = True
            self._transport.close()

    def give_up(self) -> None:
        if self._in_request and not self._deaf:
            self._refuse(Refused(503, "the receiver stops, and the request is not whole"))
        elif self._lingering:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    @property
    def lost(self) -> bool:
        """Nobody is left to be answered."""
        return self._transport is None

    @property
    def _in_request(self) -> bool:
        return self._opening is not None or bool(self._head)

    # --- Bytes in ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._drop(len(data))
            return
        try:
            if self._rest:
                self._keep_for_later(data)
            elif self._head:
                self._add_to_head(data)
            elif (
                not self._answers and self._opening is None and self._express.take(data, self._seq)
            ):
                self._seq += 1
                self._answers.append(self._express)
            else:
                self._read(data)
        except Refused as refusal:
            self._refuse(refusal)

    def _read(self, data: bytes) -> None:
        at, size = 0, len(data)
        while at < size and not self._deaf:
            if self._opening is not None:
                at = self._read_body(data, at)
            elif len(self._answers) >= MAX_PIPELINED:
                self._keep_for_later(data[at:])
                self._pace()
                return
            else:
                at = self._read_head(data, at)
        if self._opening is not None:
            self._deadline = self._loop.time() + self._options.body_timeout_s

    def _read_head(self, data: bytes, at: int) -> int:
        """A head that is there whole, and its body if that is too; says where it stopped."""
        end = data.find(HEAD_END, at) + len(HEAD_END)
        if data.startswith(b"\r\n", at):  # empty lines before a request mean nothing
            return at + 2
        if end < len(HEAD_END):
            self._begin_head(data[at:])
            return len(data)
        opening = self.receiver.open(data[at:end])
        if opening.expects:
            self._check_room()
            if end == len(data) and opening.length:
                # In its turn, like any answer.
                interim = Answer(self, opening)
                self._answers.append(interim)
                self.settle(interim, CONTINUE, keep=True)
        elif 0 <= opening.length <= len(data) - end:
            after = end + opening.length
            self._request(opening, data[end:after])
            return after
        self._opening = opening
        self._body_bytes = 0
        self._missing = max(0, opening.length)
        self._chunks = ChunkedBody() if opening.length == CHUNKED else None
        if opening.length == 0:
            self._end_body()
        return end

    def _begin_head(self, part: bytes) -> None:
        if part != b"\r":
            check_beginning(part)
        self._deadline = self._loop.time() + self._options.header_timeout_s
        self._head += part
        self._check_head(len(part))

    def _add_to_head(self, data: bytes) -> None:
        begun = len(self._head)
        self._head += data
        if self._head[:1] == b"\r" or self._head.find(HEAD_END, max(0, begun - 3)) >= 0:
            whole = bytes(self._head)
            self._release()
            self._read(whole)
        else:
            self._check_head(len(data))

    def _check_head(self, added: int) -> None:
        if len(self._head) >= MAX_HEADER_BYTES:
            raise Refused(431, TOO_LONG, close=True)
        self._hold(added)

    def _read_body(self, data: bytes, at: int) -> int:
        if self._chunks is not None:
            at = self._chunks.feed(data, at, self._keep)
            if self._chunks.complete:
                self._end_body()
            return at
        piece = data[at : at + self._missing]
        self._keep(piece)
        self._missing -= len(piece)
        if not self._missing:
            self._end_body()
        return at + len(piece)

    def _keep(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body_bytes > self._options.max_body_bytes:
            raise too_large(self._options.max_body_bytes)
        assert self._opening is not None
        if self._opening.refusal is not None:
            return  # read to its end, so that the connection can go on, and dropped
        self._hold(len(piece))
        if len(piece) >= _SMALL_BYTES:
            self._body.append(piece)
        elif self._body and isinstance(self._body[-1], bytearray):
            self._body[-1] += piece
        else:
            self._body.append(bytearray(piece))

    def _end_body(self) -> None:
        opening, body = self._opening, b"".join(self._body)
        assert opening is not None
        self._release()
        self._request(opening, body)

    def _keep_for_later(self, data: bytes) -> None:
        self._rest += data
        self._hold(len(data))

    def _hold(self, size: int) -> None:
        self._held += size
        self.receiver.hold(size)

    def _release(self) -> None:
        """Forget what was read of a request."""
        self.receiver.hold(-self._held)
        self._held = 0
        self._head.clear()
        self._rest = b""
        self._body.clear()
        self._opening = None
        self._chunks = None

    # --- Requests ------------------------------------------------------------------------------

    def _request(self, opening: Opening, body: bytes) -> None:
        receiver = self.receiver
        answer = Answer(self, opening)
        self._answers.append(answer)
        self._deaf = receiver.stopping or not opening.keep
        refusal = opening.refusal
        if refusal is None:
            try:
                if opening.ask is not None:
                    receiver.look_up(opening.ask, answer)
                else:
                    assert opening.post is not None
                    self._take(opening.post, body, answer)
                return
            except Refused as error:
                refusal = error
        receiver.intake.counters.err += 1
        keep = self.keeps(answer)
        self.settle(answer, receiver.answers.refused(refusal, opening, keep), keep)

    def _take(self, post: Post, body: bytes, answer: Answer) -> None:
        self._check_room()
        receiver = self.receiver
        if post.patience is not None and receiver.waiting.full:
            if post.patience.sync:
                raise Refused(503, "too many senders wait for their receipts; try again")
            post = replace(post, patience=None, applied=b"")
        batches = receiver.cutter.cut(post, body, self._stream, self._seq)
        if is_plain(post, batches):
            self._seq += 1
            answer.batch = batches[0]
            answer.partition = receiver.intake.submit(batches[0], answer.durable)
            return
        self._seq += sum(one.count for one in batches if one.stream == self._stream)
        Posting(answer, post, batches).submit()

    def _check_room(self) -> None:
        if self.receiver.intake.behind:
            raise Refused(503, "the disk is behind; try again")

    # --- Answers --------------------------------------------------------------------------------

    def keeps(self, answer: Answer) -> bool:
        """Whether the connection goes on after this answer."""
        assert answer.opening is not None
        if self.receiver.stopping and self._answers[-1] is answer and not self._in_request:
            return False
        return answer.opening.keep

    def settle(self, answer: Answer, data: bytes, keep: bool) -> None:
        """Send an answer as soon as those before it have been sent."""
        answer.data = data
        answer.close = not keep
        answers, transport = self._answers, self._transport
        while answers and answers[0].data is not None:
            head = answers.popleft()
            if transport is None or transport.is_closing():
                continue
            assert head.data is not None
            transport.write(head.data)
            if head.close:
                self._end(unread=head.opening is None)
        if not answers:
            if not self._in_request:
                self._deadline = self._loop.time() + self._options.idle_timeout_s
            if self.receiver.stopping or self._half_closed:
                self.close_when_idle()
        if self._paused:
            self._pace()

    def settle_first(self, answer: Answer, data: bytes) -> None:
        """`settle` for an answer that is the first in line, and after which the connection goes on:
        the same with fewer questions, if no other is in line."""
        transport = self._transport
        if (
            transport is None
            or len(self._answers) > 1
            or self._half_closed
            or self._paused
            or transport.is_closing()
        ):
            self.settle(answer, data, keep=True)
            return
        self._answers.popleft()
        transport.write(data)
        if not self._head and self._opening is None:
            self._deadline = self._loop.time() + self._idle_timeout_s

    def _refuse(self, refusal: Refused) -> None:
        """Answer the request that is being read, after those before it, and read no more."""
        self._deaf = True
        opening = self._opening
        self._release()
        self.receiver.intake.counters.err += 1
        answer = Answer(self, None)
        self._answers.append(answer)
        data = self.receiver.answers.refused(refusal, opening, keep=False)
        self.settle(answer, data, keep=False)

    def _end(self, *, unread: bool) -> None:
        """The last answer is written. If the client is still sending, closing at once would make its
        system throw the answer away: it is given a while to read it and to stop."""
        self._deaf = True
        transport = self._transport
        assert transport is not None
        if not unread or self._half_closed:
            transport.close()
            return
        self._lingering = True
        self._deadline = self._loop.time() + LINGER_S
        if transport.can_write_eof():
            transport.write_eof()

    def _drop(self, size: int) -> None:
        self._dropped += size
        if self._dropped > LINGER_BYTES and self._transport is not None:
            self._transport.abort()

    def _pace(self) -> None:
        """Stop reading while too much waits for this client; go on when it has been dealt with."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        waiting = len(self._answers)
        if not self._paused and (self._clogged or waiting >= MAX_PIPELINED):
            self._paused = True
            transport.pause_reading()
        elif self._paused and not self._clogged and waiting <= MAX_PIPELINED // 2:
            self._paused = False
            transport.resume_reading()
            rest, self._rest = self._rest, b""
            if rest:
                self._hold(-len(rest))
                self.data_received(rest)
