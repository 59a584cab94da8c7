"""One request between its last byte and its answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.edge.http.request import Opening
from penstock.errors import PenstockError
from penstock.log.interface import Appended
from penstock.message import CONNECTION_STREAM, Batch

if TYPE_CHECKING:
    from penstock.edge.http.connection import HttpConnection


class Answer:
    """The place of one request's answer in the order of its connection."""

    __slots__ = ("batch", "close", "connection", "data", "opening", "partition")

    def __init__(self, connection: HttpConnection, opening: Opening | None) -> None:
        self.connection = connection
        self.opening = opening
        self.batch: Batch | None = None
        self.partition = 0
        self.close = False
        self.data: bytes | None = None

    def durable(self, result: Appended | PenstockError) -> None:
        """The one message of a request without ceremony is on disk, or is not."""
        batch, opening, connection = self.batch, self.opening, self.connection
        assert batch is not None
        assert opening is not None
        receiver = connection.receiver
        receiver.intake.settled(1, result)
        keep = connection.keeps(self)
        if isinstance(result, Appended):
            data = receiver.answers.one(batch, self.partition, result, opening, keep)
        else:
            data = receiver.answers.failed(result, opening, keep)
        connection.settle(self, data, keep)


class Posting:
    """A request whose messages go into several batches, or which wants to know more than that
    they are durable."""

    def __init__(self, answer: Answer, batches: list[Batch]) -> None:
        self._answer = answer
        self._batches = batches
        self._results: list[Appended | PenstockError | None] = [None] * len(batches)
        self._partitions = [0] * len(batches)
        self._left = len(batches)

    def submit(self) -> None:
        intake = self._answer.connection.receiver.intake
        if not self._batches:  # of no events
            self._stored()
        for number, batch in enumerate(self._batches):
            self._partitions[number] = intake.submit(batch, partial(self._durable, number))

    def _durable(self, number: int, result: Appended | PenstockError) -> None:
        self._answer.connection.receiver.intake.settled(self._batches[number].count, result)
        self._results[number] = result
        self._left -= 1
        if not self._left:
            self._stored()

    def _stored(self) -> None:
        answer = self._answer
        opening, receiver = answer.opening, answer.connection.receiver
        assert opening is not None
        keep = answer.connection.keeps(answer)
        places: list[tuple[int, Appended]] = []
        for partition, result in zip(self._partitions, self._results, strict=True):
            if isinstance(result, PenstockError):
                # The others are stored all the same: sent again, they are repeats.
                data = receiver.answers.failed(result, opening, keep)
                answer.connection.settle(answer, data, keep)
                return
            assert result is not None
            places.append((partition, result))
        data = receiver.answers.accepted(self._batches, places, opening, keep)
        answer.connection.settle(answer, data, keep)


def is_plain(batches: list[Batch]) -> bool:
    """One message on the connection's own stream, as most requests have it."""
    return (
        len(batches) == 1
        and batches[0].lengths is None
        and batches[0].stream.startswith(CONNECTION_STREAM)
    )
