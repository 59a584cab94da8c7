"""What all connections of one HTTP receiver share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.edge.http.answer import Answers
from penstock.edge.http.body import Cutter
from penstock.edge.http.connection import HttpConnection
from penstock.edge.http.express import is_express
from penstock.edge.http.head import Refused
from penstock.edge.http.request import Gate, Opening
from penstock.edge.intake import Intake
from penstock.interceptors.chain import Chain
from penstock.limits import MAX_KNOWN_HEADS
from penstock.peers.http import HttpServerOptions

_SWEEP_S = 1.0
_UNDONE_BY = {"gzip": {b"gzip", b"x-gzip"}, "decompress": {b"gzip", b"x-gzip", b"deflate", b"zstd"}}


class HttpReceiver:
    def __init__(
        self,
        options: HttpServerOptions,
        intake: Intake,
        make_chain: Callable[[], Chain],
        first_interceptor: str | None = None,
    ) -> None:
        self.options = options
        self.intake = intake
        self.answers = Answers(intake.peer)
        # Every body is framed already: a chain keeps nothing from one to the next.
        self.cutter = Cutter(intake.peer, make_chain(), options.max_message_bytes)
        self.connections: set[HttpConnection] = set()
        self.stopping = False
        self._gate = Gate(options, _UNDONE_BY.get(first_interceptor or "", ()))
        self._openings: dict[bytes, Opening] = {}
        self.express: dict[bytes, Opening] = {}
        self._held_bytes = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep_s = min(
            _SWEEP_S,
            options.header_timeout_s / 4,
            options.body_timeout_s / 4,
            options.idle_timeout_s / 4,
        )

    def connection(self) -> HttpConnection:
        return HttpConnection(self)

    def start(self) -> None:
        self._sweep()

    def stop(self) -> None:
        """Close what is idle; a connection with something under way closes after its answer."""
        self.stopping = True
        for connection in list(self.connections):
            connection.close_when_idle()

    @property
    def idle(self) -> bool:
        return not self.connections

    def give_up(self) -> None:
        """The time to stop is over: say so to those who have not sent all of their request."""
        for connection in list(self.connections):
            connection.give_up()

    def abort(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.abort()

    def open(self, head: bytes) -> Opening:
        """What a head means: a function of its bytes, so the answer can be remembered."""
        opening = self._openings.get(head)
        if opening is None:
            opening = self._gate.open(head)
            if opening.lasting:
                if len(self._openings) >= MAX_KNOWN_HEADS:
                    self._openings.clear()
                    self.express.clear()
                self._openings[head] = opening
                if self.cutter.plain and is_express(head, opening, self.cutter.longest):
                    self.express[head] = opening
        return opening

    def hold(self, size: int) -> None:
        """Account for bytes that wait for the rest of their request; negative: they went."""
        self._held_bytes += size
        if size > 0 and self._held_bytes > self.options.max_inflight_bytes:
            raise Refused(503, "too much is being received; try again", close=True)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeper = loop.call_later(self._sweep_s, self._sweep)
        self.answers.tick()
        now = loop.time()
        for connection in list(self.connections):
            connection.check_time(now)
