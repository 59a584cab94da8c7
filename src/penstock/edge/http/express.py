"""The express lane: small POSTs of one message whose head is known, each in one read.

Most requests there are, and all that a benchmark sends. What they mean and how they are answered is
decided elsewhere; here that is only done without the objects that the general way makes for each, a
`Batch`, its result and its answer, which would cost more than everything else about them. A request that
is special in any way returns to the general way before anything has been done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.edge.http.head import HEAD_END
from penstock.edge.http.posting import Answer
from penstock.edge.http.request import Opening
from penstock.errors import PenstockError
from penstock.limits import KiB
from penstock.message import Source

if TYPE_CHECKING:
    from penstock.edge.http.connection import HttpConnection

MAX_EXPRESS_BYTES = 64 * KiB
"""A body. Larger ones seldom come in one read, and the general way costs them nothing."""


def is_express(head: bytes, opening: Opening, max_message_bytes: int) -> bool:
    """Whether all that such a request wants is that its body is stored, as it is."""
    post = opening.post
    return (
        post is not None
        and post.framing == "one"
        and post.stream is None
        and opening.refusal is None
        and 0 <= opening.length <= min(max_message_bytes, MAX_EXPRESS_BYTES)
        and opening.keep
        and not (opening.old or opening.expects or opening.headless)
        and b"sync" not in head[: head.index(b"\r\n")]
    )


class Express(Answer):
    """The lane of one connection: one request at a time, so it is the place of its answer too."""

    __slots__ = (
        "_answers",
        "_counters",
        "_heads",
        "_limit",
        "_queue",
        "_receiver",
        "_source",
        "_stream",
        "_writer",
    )

    def __init__(self, connection: HttpConnection, stream: str) -> None:
        super().__init__(connection, None)
        receiver = self._receiver = connection.receiver
        intake = receiver.intake
        self.partition = intake.partition_of_own(stream)
        self._heads = receiver.express
        self._answers = receiver.answers
        self._counters = intake.counters
        self._queue = intake.queue
        self._limit = intake.max_pending_bytes
        self._writer = intake.writers[self.partition]
        self._source = Source(intake.peer, stream)
        self._stream = stream

    def take(self, data: bytes, seq: int) -> bool:
        """Whether `data` was such a request; if so its message is under way, with this number.

        The connection stands between two requests, and nothing of it waits for an answer.
        """
        end = data.find(HEAD_END) + 4
        opening = self._heads.get(data[:end])
        if (
            opening is None
            or len(data) != end + opening.length
            or self._writer.pending_bytes > self._limit
            or self._receiver.stopping
        ):
            return False
        assert opening.post is not None
        self.opening = opening
        self.data = None
        counters = self._counters
        counters.recv += 1
        counters.recv_bytes += opening.length
        self._writer.submit_one(self._source, seq, data[end:], opening.post.encoded_meta, self)
        return True

    def stored(self, seq: int, offset: int) -> None:
        self._counters.out += 1
        if self._queue.waiting:
            self._queue.move()
        connection = self.connection
        keep = connection.keeps(self) if self._receiver.stopping else True
        data = self._answers.express(self._stream, seq, self.partition, offset, keep)
        connection.settle(self, data, keep)

    def refused(self, seq: int, error: PenstockError) -> None:
        self._counters.err += 1
        assert self.opening is not None
        keep = self.connection.keeps(self)
        data = self._answers.failed(error, self.opening, keep)
        self.connection.settle(self, data, keep)
