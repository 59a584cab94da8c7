"""The express lane: small POSTs of one message whose head is known, each in one read.

Most requests there are, and all that a benchmark sends. What they mean and how they are answered is
decided elsewhere; here that is only done without the objects that the general way makes for each, a
`Batch`, its result and its answer, which would cost more than everything else about them. A request that
is special in any way returns to the general way before anything has been done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.edge.http.answer import BODY_END
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


def is_express(opening: Opening, max_message_bytes: int) -> bool:
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
        and post.patience is None
        and not post.applied
    )


class Express(Answer):
    """The lane of one connection: one request at a time, so it is the place of its answer too.

    Clients send the same head again and again, so the last one is remembered with what it means; and
    of the answer what stays the same from one to the next.
    """

    __slots__ = (
        "_answer_at",
        "_answer_end",
        "_answer_head",
        "_answer_place",
        "_answers",
        "_body_bytes",
        "_counters",
        "_head",
        "_head_bytes",
        "_heads",
        "_limit",
        "_meta",
        "_queue",
        "_receiver",
        "_seq_digits",
        "_source",
        "_whole_bytes",
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
        self._head = b""
        self._head_bytes = self._body_bytes = 0
        self._whole_bytes = -1
        self._meta = b""
        self._answer_head = ""
        self._answer_place = ""
        self._answer_at = f"?at={self.partition}:"
        self._answer_end = ""
        self._seq_digits = 0

    def take(self, data: bytes, seq: int) -> bool:
        """Whether `data` was such a request; if so its message is under way, with this number.

        The connection stands between two requests, and nothing of it waits for an answer.
        """
        known = len(data) == self._whole_bytes and data.startswith(self._head)
        if not known and not self._learn(data):
            return False
        writer = self._writer
        if writer.pending_bytes > self._limit or self._receiver.stopping:
            return False
        self.data = None
        counters = self._counters
        counters.recv += 1
        counters.recv_bytes += self._body_bytes
        writer.submit_one(self._source, seq, data[self._head_bytes :], self._meta, self)
        return True

    def _learn(self, data: bytes) -> bool:
        end = data.find(HEAD_END) + len(HEAD_END)
        opening = self._heads.get(data[:end])
        if opening is None or len(data) != end + opening.length:
            return False
        assert opening.post is not None
        self.opening = opening
        self._meta = opening.post.encoded_meta
        self._head = data[:end]
        self._head_bytes = end
        self._body_bytes = opening.length
        self._whole_bytes = len(data)
        return True

    def stored(self, seq: int, offset: int) -> None:
        self._counters.out += 1
        if self._queue.waiting:
            self._queue.move()
        connection = self.connection
        if self._receiver.stopping:
            keep = connection.keeps(self)
            data = self._answers.express(self._source.stream, seq, self.partition, offset, keep)
            connection.settle(self, data, keep)
            return
        digits = str(seq)
        if self._answers.accepted_head is not self._answer_head or len(digits) != self._seq_digits:
            self._prepare(len(digits))
        # What `Answers.express` gives, of fewer pieces.
        answer = (
            f"{self._answer_place}{digits}{self._answer_at}{offset}"
            f"{self._answer_end}{digits}{BODY_END}"
        )
        connection.settle_first(self, answer.encode())

    def _prepare(self, seq_digits: int) -> None:
        """Once a second, as the date goes on, and when the numbers get longer."""
        answers, stream = self._answers, self._source.stream
        self._answer_head = answers.accepted_head
        self._answer_place = f"{answers.accepted_head}{stream}/"
        self._answer_end = answers.express_end(stream, seq_digits)
        self._seq_digits = seq_digits

    def refused(self, seq: int, error: PenstockError) -> None:
        self._counters.err += 1
        assert self.opening is not None
        keep = self.connection.keeps(self)
        data = self._answers.failed(error, self.opening, keep)
        self.connection.settle(self, data, keep)
