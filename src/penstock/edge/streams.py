"""`receiver.tcp` and `receiver.unix` in stream mode: one connection is one stream.

Back-pressure is not reading: a connection stops reading while the disk is behind, and the kernel's
window tells the sender. With `reply: status` every message is answered with a line, in order: what became
of it, where an engine settles messages, and that it is stored where none does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, cast

from penstock import logs
from penstock.edge.intake import Intake
from penstock.edge.status_lines import Reply, one_line
from penstock.edge.waiting import Outcome, Waiting
from penstock.errors import InvalidMessage, PenstockError
from penstock.interceptors.chain import Chain
from penstock.interceptors.interface import Payloads
from penstock.limits import MAX_UNANSWERED_READS, STREAM_READ_BYTES
from penstock.log.interface import Appended
from penstock.message import Batch, connection_stream

log = logs.get("edge")

_SWEEP_S = 1.0
_OVERFULL = "too much is being received at a time; send it again later"
_NO_CHAIN: Final = Chain([], framed=False, cuts=False)


class StreamOptions(Protocol):
    @property
    def max_connections(self) -> int: ...

    @property
    def max_inflight_bytes(self) -> int: ...

    @property
    def idle_timeout_s(self) -> float: ...

    @property
    def max_message_bytes(self) -> int: ...

    @property
    def reply(self) -> str: ...

    @property
    def reply_timeout_s(self) -> float: ...


class StreamReceiver:
    """What all connections of one receiver share."""

    def __init__(
        self,
        options: StreamOptions,
        intake: Intake,
        make_chain: Callable[[], Chain],
        waiting: Waiting,
    ) -> None:
        self.options = options
        self.intake = intake
        self.waiting = waiting
        self.replies = options.reply == "status"
        self.make_chain = make_chain
        self.connections: set[StreamConnection] = set()
        self.stopping = False
        self.held_bytes = 0  # of messages that have not come to their end, over all connections
        self._told = False  # of connections that were ended for it, since the last sweep
        # One buffer for all: a read is cut into messages, and copied, before the next one.
        self.buffer = memoryview(bytearray(STREAM_READ_BYTES))
        self._sweeper: asyncio.TimerHandle | None = None

    def connection(self) -> StreamConnection:
        return StreamConnection(self)

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Take no more; what was read is flushed, answered, and then the connection closes."""
        self.stopping = True
        for connection in list(self.connections):
            connection.finish()

    @property
    def idle(self) -> bool:
        return not self.connections

    def give_up(self) -> None:
        """Nothing is waited for here but the disk, and the client that reads its answers."""

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    def hold(self, size_bytes: int) -> bool:
        """Account for what waits for the rest of its message; negative: it went. False: too much."""
        self.held_bytes += size_bytes
        if size_bytes <= 0 or self.held_bytes <= self.options.max_inflight_bytes:
            return True
        if not self._told:  # a line for each could be thousands a second
            self._told = True
            log.warning(
                "connections are ended: too much is half received; see max_inflight_bytes",
                peer=self.intake.peer,
                limit_bytes=self.options.max_inflight_bytes,
            )
        return False

    def _sweep(self) -> None:
        self._told = False
        loop = asyncio.get_running_loop()
        pause_s = min(_SWEEP_S, self.options.idle_timeout_s / 4)
        self._sweeper = loop.call_later(pause_s, self._sweep)
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)


class StreamConnection(asyncio.BufferedProtocol):
    def __init__(self, receiver: StreamReceiver) -> None:
        self._receiver = receiver
        self._intake = receiver.intake
        self._chain = receiver.make_chain()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._stream = connection_stream()
        self._seq = 0
        self._held_bytes = 0
        self._replies: deque[Reply] = deque()
        self._paused = False  # by the disk
        self._clogged = False  # the client does not read its answers
        self._ended = False  # nothing more is taken
        self._halted = False  # not read from, for any of these reasons or for too many replies
        self._farewell: str | None = None
        self._heard_at = self._loop.time()

    # --- The connection -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        receiver = self._receiver
        if len(receiver.connections) >= receiver.options.max_connections or receiver.stopping:
            self._intake.counters.refused += 1
            self._end("too many connections")
            return
        receiver.connections.add(self)
        self._intake.counters.connections += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended:
            return
        self._heard_at = self._loop.time()
        try:
            self._submit(self._chain.feed(self._receiver.buffer[:nbytes]))
            if self._chain.failed is not None:
                raise self._chain.failed
        except InvalidMessage as error:
            self._intake.counters.err += 1
            self._end(str(error))
            return
        held_bytes = self._chain.held_bytes
        grown_bytes, self._held_bytes = held_bytes - self._held_bytes, held_bytes
        if grown_bytes and not self._receiver.hold(grown_bytes):
            self._intake.counters.refused += 1
            self._end(_OVERFULL)
            return
        self._press_back()

    def eof_received(self) -> bool:
        self._flush()
        return bool(self._replies)

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self._flush()
        self._take_no_more()
        self._intake.queue.leave(self._intake, self._resume)
        for reply in self._replies:
            if reply.wait is not None:
                self._receiver.waiting.cancel(reply.wait)
        if self in self._receiver.connections:
            self._receiver.connections.discard(self)
            self._intake.counters.connections -= 1
        self._transport = None

    def check_time(self, now: float) -> None:
        silent = now - self._heard_at > self._receiver.options.idle_timeout_s
        if silent and self._clogged:
            self.abort()
        elif silent and not self._replies and not self._paused:
            self._end("idle for too long")

    def finish(self) -> None:
        self._end(None)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- Messages -------------------------------------------------------------------------------

    def _flush(self) -> None:
        """The sender has ended the stream: a last line without its end is a message too."""
        if self._ended:
            return
        try:
            self._submit(self._chain.flush())
            self._end(None)
        except InvalidMessage as error:
            self._intake.counters.err += 1
            self._end(str(error))

    def _submit(self, payloads: Payloads) -> None:
        if not payloads.count:
            return
        longest = self._receiver.options.max_message_bytes
        lengths = payloads.lengths
        largest = len(payloads.blob) if lengths is None else int(lengths.max())
        if largest > longest:
            raise InvalidMessage(f"a message has at most {longest} bytes")
        batch = Batch(self._intake.peer, self._stream, self._seq, payloads.blob, payloads.lengths)
        self._seq += batch.count
        reply = Reply(batch)
        self._replies.append(reply)
        reply.partition = self._intake.submit(batch, partial(self._durable, reply))

    def _durable(self, reply: Reply, result: Appended | PenstockError) -> None:
        self._intake.settled(reply.count, result)
        receiver = self._receiver
        if isinstance(result, PenstockError):
            # What follows would be stored without what came before it: the order is broken.
            reply.lines = reply.all("failed", str(result)) if receiver.replies else b""
            self._end(str(result))
        elif not receiver.replies:
            reply.lines = b""
        elif self._transport is None or not receiver.waiting.open or receiver.waiting.full:
            reply.lines = reply.all("new")
        else:
            start = result.offset
            reply.wait = receiver.waiting.begin(
                self._intake.topic,
                [(reply.partition, start, start + reply.count)],
                receiver.options.reply_timeout_s,
                partial(self._settled, reply, start),
                keep=reply.count,
            )
            return
        self._send()

    def _settled(self, reply: Reply, start: int, outcome: Outcome | None) -> None:
        reply.lines = reply.all("timed_out") if outcome is None else reply.each(start, outcome)
        self._send()

    # --- Answers --------------------------------------------------------------------------------

    def _send(self) -> None:
        """Lines go out in the order of the messages."""
        transport, replies = self._transport, self._replies
        while replies and replies[0].lines is not None:
            reply = replies.popleft()
            if reply.lines and transport is not None and not transport.is_closing():
                transport.write(reply.lines)
                self._intake.counters.send += reply.count
        if not replies and self._ended:
            self._close()
        else:
            self._pace()

    def _end(self, farewell: str | None) -> None:
        """Take no more; close once everyone is answered."""
        self._take_no_more()
        if self._farewell is None:
            self._farewell = farewell
        if self._replies:
            self._pace()
        else:
            self._close()

    def _take_no_more(self) -> None:
        """The half of a message that was received goes at once: answers may be due for long."""
        self._ended = True
        self._chain = _NO_CHAIN
        self._receiver.hold(-self._held_bytes)
        self._held_bytes = 0

    def _close(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._farewell is not None and self._receiver.replies:
            transport.write(f"error {one_line(self._farewell)}\n".encode())
        transport.close()

    def _press_back(self) -> None:
        if self._intake.behind and not self._paused:
            self._paused = True
            self._intake.queue.join(self._intake, self._resume)
        self._pace()

    def _resume(self) -> None:
        """The disk has caught up."""
        self._paused = False
        self._heard_at = self._loop.time()
        self._pace()

    def pause_writing(self) -> None:
        self._clogged = True
        self._heard_at = self._loop.time()
        self._pace()

    def resume_writing(self) -> None:
        self._clogged = False
        self._pace()

    def _pace(self) -> None:
        """Read or not, as the disk, the client and the answers that are due allow."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        full = self._receiver.replies and len(self._replies) >= MAX_UNANSWERED_READS
        halted = self._paused or self._clogged or self._ended or full
        if halted != self._halted:
            self._halted = halted
            if halted:
                transport.pause_reading()
            else:
                transport.resume_reading()
