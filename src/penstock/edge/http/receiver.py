"""What all connections of one HTTP receiver share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.edge.http.answer import Answers
from penstock.edge.http.body import Cutter
from penstock.edge.http.connection import HttpConnection
from penstock.edge.http.express import is_express
from penstock.edge.http.head import Refused
from penstock.edge.http.posting import Answer
from penstock.edge.http.request import Ask, Gate, Opening
from penstock.edge.intake import Intake
from penstock.edge.waiting import Stretch, Waiting
from penstock.errors import PenstockError, UnknownMessage
from penstock.flow.finding import Finder
from penstock.flow.receipt import Receipt
from penstock.interceptors.chain import Chain
from penstock.limits import MAX_KNOWN_HEADS, MAX_LOOKUPS
from penstock.log import TopicName
from penstock.message import EventId
from penstock.peers.http import HttpReceiverOptions

_SWEEP_S = 1.0
_UNDONE_BY = {"gzip": {b"gzip", b"x-gzip"}, "decompress": {b"gzip", b"x-gzip", b"deflate", b"zstd"}}


class HttpReceiver:
    def __init__(
        self,
        options: HttpReceiverOptions,
        intake: Intake,
        make_chain: Callable[[], Chain],
        waiting: Waiting,
        finder: Finder,
        first_interceptor: str | None = None,
    ) -> None:
        self.options = options
        self.intake = intake
        self.waiting = waiting
        self._finder = finder
        self._topic = TopicName.parse(intake.topic)
        self._lookups = 0
        self._searcher = ThreadPoolExecutor(1, thread_name_prefix=f"search {intake.topic}")
        self.answers = Answers(intake.peer)
        # Every body is framed already: a chain keeps nothing from one to the next.
        self.cutter = Cutter(intake.peer, make_chain(), options.max_message_bytes)
        self.connections: set[HttpConnection] = set()
        self.stopping = False
        self._gate = Gate(
            options,
            intake.peer,
            _UNDONE_BY.get(first_interceptor or "", ()),
            receipts=waiting.open,
        )
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
        self._searcher.shutdown(wait=False, cancel_futures=True)
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
                if self.cutter.plain and is_express(opening, self.cutter.longest):
                    self.express[head] = opening
        return opening

    def look_up(self, ask: Ask, answer: Answer) -> None:
        """Find a receipt, off the event loop: the message may have to be searched for."""
        if self._lookups >= MAX_LOOKUPS:
            raise Refused(503, "too many receipts are asked for; try again")
        self._lookups += 1
        known = self.intake.offset_of(ask.event)
        future = asyncio.get_running_loop().run_in_executor(
            self._searcher, self._finder.receipt, self._topic, ask.event, ask.at, known
        )
        future.add_done_callback(lambda found: self._looked_up(ask, answer, found))

    def search(
        self,
        partition: int,
        first: EventId,
        count: int,
        done: Callable[[list[Stretch] | None], None],
    ) -> None:
        """Find out where messages are that were stored before; None: that cannot be found out."""
        loop = asyncio.get_running_loop()
        if self._lookups >= MAX_LOOKUPS:
            loop.call_soon(done, None)
            return
        self._lookups += 1
        future = loop.run_in_executor(
            self._searcher, self._finder.stretches, self._topic, partition, first, count
        )

        def found(future: asyncio.Future[list[Stretch] | None]) -> None:
            self._lookups -= 1
            if not future.cancelled():
                failed = isinstance(future.exception(), PenstockError)
                done(None if failed else future.result())

        future.add_done_callback(found)

    def _looked_up(self, ask: Ask, answer: Answer, found: asyncio.Future[Receipt]) -> None:
        self._lookups -= 1
        if found.cancelled():
            return
        code = 200
        body: dict[str, object] = {"id": str(ask.event)}
        match found.exception():
            case None:
                body |= found.result().to_json()
            case UnknownMessage() as unknown:
                code, body = 404, {**body, "reason": str(unknown)}
            case PenstockError() as error:
                code, body = 503, {**body, "reason": str(error)}
            case unforeseen:
                raise unforeseen
        keep = answer.connection.keeps(answer)
        data = self.answers.render(code, body, answer.opening, keep)
        answer.connection.settle(answer, data, keep)

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
