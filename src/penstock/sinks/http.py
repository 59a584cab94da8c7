"""`sink.http`: each event is a request, or many are one (`batch`). At least once.

HTTP cannot prepare: requests are sent in `prepare`, or before, if a task has more than may be kept. Each has
an `Idempotency-Key` made of the event's id, so that a destination that looks at it can drop repeats.

What an answer means:

- 2xx: the event is there.
- 401, 407 (we are not let in), 408, 425, 429 (not now), 3xx (the URL is wrong), 5xx, and no answer: the
  destination cannot be used now. Nothing is the matter with the event.
- any other 4xx: the destination will never take this event. In a batch, halves are tried to find it.

A task uses several connections at once. Events of one stream go over one of them, one after another.
"""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from typing import Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.guarantee import Guarantee
from penstock.limits import SEND_BUFFER_BYTES
from penstock.sinks.connections import Target, drain, idle
from penstock.sinks.framing import Framing
from penstock.sinks.http_requests import Bodies, Body
from penstock.sinks.interface import Prepared, Refused, Txn

_NOT_THE_EVENT: Final = (401, 407, 408, 425, 429)
_ANSWER_BYTES: Final = 65_536
_TOLD_CHARS: Final = 200
_STALE: Final = (ConnectionError, http.client.BadStatusLine)


@dataclass(frozen=True, slots=True)
class HttpSink:
    target: Target
    path: str  # with the query
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # may hold secrets
    framing: Framing = field(default_factory=lambda: Framing(framed=True))
    batch: bool = False
    connections: int = 4

    @property
    def name(self) -> str:
        return self.target.sink

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def task(self, txn: Txn, partition: int, attempt: int) -> HttpTask:
        return HttpTask(self)

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        """It was sent when it was prepared."""

    def abort(self, txn: Txn) -> None:
        """What was sent cannot be taken back."""

    def uncommitted(self, coordinator: str) -> list[Txn]:
        return []

    def probe(self) -> None:
        self.target.connect().close()

    def close(self) -> None:
        for one in idle.clear(self.target.key):
            one.close()


class HttpTask:
    def __init__(self, sink: HttpSink) -> None:
        self._sink = sink
        self._bodies = Bodies(sink.framing, batch=sink.batch)
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._refused: list[Refused] = []

    def write(self, events: pa.RecordBatch) -> None:
        self._bodies.check(events)
        self._kept.append(events)
        self._kept_bytes += events.nbytes
        if self._kept_bytes > SEND_BUFFER_BYTES:
            self._send()

    def prepare(self) -> Prepared:
        self._send()
        return Prepared(b"", tuple(self._refused))

    def abort(self) -> None:
        """Nothing is under way: `_send` ends with every request answered."""

    def _send(self) -> None:
        if not self._kept:
            return
        table = pa.Table.from_batches(self._kept).combine_chunks()
        lanes = list(_lanes(table, self._sink.connections))
        stop = Event()
        if len(lanes) == 1:
            self._refused += self._send_lane(lanes[0], stop)
        else:
            with ThreadPoolExecutor(len(lanes)) as pool:
                futures = [pool.submit(self._send_lane, lane, stop) for lane in lanes]
            for future in futures:
                self._refused += future.result()
        self._kept, self._kept_bytes = [], 0

    def _send_lane(self, events: pa.RecordBatch, stop: Event) -> list[Refused]:
        """One request after another over one connection."""
        refused: list[Refused] = []
        lane = _Lane(self._sink)
        try:
            for body in self._bodies.of(events):
                if stop.is_set():
                    break  # another lane has found that nobody is there
                refused += self._deliver(lane, body)
            lane.give_back()
        except BaseException:
            stop.set()
            lane.close()
            raise
        return refused

    def _deliver(self, lane: _Lane, body: Body) -> list[Refused]:
        answer = lane.send(body)
        if answer is None:
            return []
        if body.count == 1:
            return [Refused(body.events, [answer])]
        return [
            refused for half in self._bodies.halves(body) for refused in self._deliver(lane, half)
        ]


class _Lane:
    """One connection, made when it is needed, and made again once if it turns out to be stale."""

    def __init__(self, sink: HttpSink) -> None:
        self._sink = sink
        self._connection: http.client.HTTPConnection | None = None
        self._fresh = False  # no request has been answered on it

    def send(self, body: Body) -> str | None:
        """None if the destination has it; why not, if it never will. Else SinkUnavailable."""
        connection = self._connection or self._connect()
        try:
            try:
                code, told = self._exchange(connection, body)
            except _STALE:
                if self._fresh:
                    raise
                # A kept-alive connection may be closed by the server at any moment.
                self.close()
                code, told = self._exchange(self._connect(reuse=False), body)
        except (OSError, http.client.HTTPException) as error:
            raise self._sink.target.unavailable(error) from error
        self._fresh = False
        if 200 <= code < 300:
            return None
        if 400 <= code < 500 and code not in _NOT_THE_EVENT:
            return told
        hint = "; redirects are not followed, change `url`" if 300 <= code < 400 else ""
        raise self._sink.target.unavailable(f"the answer was {told}{hint}")

    def _connect(self, *, reuse: bool = True) -> http.client.HTTPConnection:
        target = self._sink.target
        while reuse and (found := idle.take(target.key)) is not None:
            with suppress(OSError):
                if drain(found.sock):
                    self._connection, self._fresh = found, False
                    return cast("http.client.HTTPConnection", found)
            found.close()
        made = http.client.HTTPConnection("", timeout=target.timeout_s)
        made.auto_open = 0  # ours may be TLS, one that it opens by itself would not be
        made.sock = target.connect()
        self._connection, self._fresh = made, True
        return made

    def _exchange(self, connection: http.client.HTTPConnection, body: Body) -> tuple[int, str]:
        """The status, and what to tell of it."""
        sink = self._sink
        connection.putrequest(sink.method, sink.path, skip_host=True, skip_accept_encoding=True)
        for name, value in sink.headers:
            connection.putheader(name, value)
        connection.putheader("Idempotency-Key", body.key)
        connection.putheader("Content-Length", str(len(body.data)))
        connection.endheaders(body.data)
        response = connection.getresponse()
        said = response.read(_ANSWER_BYTES)
        told = f"{response.status} {response.reason}"
        if response.status >= 300 and said:
            told += f": {said[:_TOLD_CHARS].decode(errors='replace').strip()}"
        if response.will_close or not response.isclosed():
            self.close()  # it says so, or has more to say than anyone wants to hear
        return response.status, told

    def give_back(self) -> None:
        found, self._connection = self._connection, None
        if found is not None and not idle.put(self._sink.target.key, found):
            found.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _lanes(table: pa.Table, count: int) -> Iterator[pa.RecordBatch]:
    """The events spread over connections, each stream whole on one of them."""
    [batch] = table.to_batches() or [None]
    if batch is None:
        return
    names = pc.dictionary_encode(
        pc.binary_join_element_wise(batch.column("peer"), batch.column("stream"), "/")
    )
    lanes = names.indices.to_numpy() % count
    for lane in np.unique(lanes).tolist():
        yield batch.filter(pa.array(lanes == lane))
