"""One request between its last byte and its answer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.edge.http.request import Opening, Patience, Post
from penstock.edge.intake import Intake
from penstock.edge.waiting import Outcome, Stretch, Wait
from penstock.errors import PenstockError
from penstock.limits import MAX_LISTED_RECEIPTS
from penstock.log.interface import Appended
from penstock.message import CONNECTION_STREAM, Batch, EventId

if TYPE_CHECKING:
    from penstock.edge.http.connection import HttpConnection

Places = list[tuple[int, Appended]]
"""The partition and the result of each batch."""

_PLACES_LOOKED_UP = 10_000
"""Of a batch with repeats, each message is asked for by itself, on the event loop; if there are more,
they are searched for elsewhere."""


class Answer:
    """The place of one request's answer in the order of its connection."""

    __slots__ = ("batch", "close", "connection", "data", "opening", "partition", "wait")

    def __init__(self, connection: HttpConnection, opening: Opening | None) -> None:
        self.connection = connection
        self.opening = opening
        self.batch: Batch | None = None
        self.partition = 0
        self.close = False
        self.data: bytes | None = None
        self.wait: Wait | None = None

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

    def __init__(self, answer: Answer, post: Post, batches: list[Batch]) -> None:
        assert answer.opening is not None
        self._answer = answer
        self._opening = answer.opening
        self._connection = answer.connection
        self._receiver = answer.connection.receiver
        self._post = post
        self._batches = batches
        self._results: list[Appended | PenstockError | None] = [None] * len(batches)
        self._partitions = [0] * len(batches)
        self._left = len(batches)

    def submit(self) -> None:
        if not self._batches:  # of no events
            self._stored()
        for number, batch in enumerate(self._batches):
            done = partial(self._durable, number)
            self._partitions[number] = self._receiver.intake.submit(batch, done)

    def _durable(self, number: int, result: Appended | PenstockError) -> None:
        self._receiver.intake.settled(self._batches[number].count, result)
        self._results[number] = result
        self._left -= 1
        if not self._left:
            self._stored()

    def _stored(self) -> None:
        places: Places = []
        for partition, result in zip(self._partitions, self._results, strict=True):
            if isinstance(result, PenstockError):
                # The others are stored all the same: sent again, they are repeats.
                keep = self._connection.keeps(self._answer)
                data = self._receiver.answers.failed(result, self._opening, keep)
                self._connection.settle(self._answer, data, keep)
                return
            assert result is not None
            places.append((partition, result))
        patience = self._post.patience
        if patience is None:
            self._accept(places)
        else:
            self._find(places, patience)

    def _accept(self, places: Places) -> None:
        keep = self._connection.keeps(self._answer)
        data = self._receiver.answers.accepted(
            self._batches, places, self._opening, keep, hint=self._post.applied
        )
        self._connection.settle(self._answer, data, keep)

    # --- Who waits for the receipt --------------------------------------------------------------

    def _find(self, places: Places, patience: Patience) -> None:
        """Repeats are where the first ones are: that may have to be searched for."""
        found: list[Stretch] = []
        for batch, (partition, result) in zip(self._batches, places, strict=True):
            stretches = _known(self._receiver.intake, batch, partition, result)
            if stretches is None:
                break
            found += stretches
        else:
            self._wait(places, patience, found)
            return
        # Only a numbered stream can be in parts, and then all batches are of it.
        first, count = self._batches[0], sum(batch.count for batch in self._batches)
        event = EventId(first.peer, first.stream, first.seq)
        waits = partial(self._wait, places, patience)
        self._receiver.search(self._partitions[0], event, count, waits)

    def _wait(self, places: Places, patience: Patience, found: list[Stretch] | None) -> None:
        if found is None:
            self._late(places, patience, "stored long ago, and too many came since to find it")
            return
        if self._connection.lost:
            self._accept(places)
            return
        self._answer.wait = self._receiver.waiting.begin(
            self._receiver.intake.topic,
            found,
            patience.seconds,
            partial(self._settled, places, patience),
            keep=MAX_LISTED_RECEIPTS,
        )

    def _settled(self, places: Places, patience: Patience, outcome: Outcome | None) -> None:
        if outcome is None:
            late = (
                f"stored, and not settled within {patience.seconds:g} s: ask for the receipt later"
            )
            stops = "stored, and the receiver stops: ask for the receipt later"
            self._late(places, patience, stops if self._receiver.stopping else late)
            return
        keep = self._connection.keeps(self._answer)
        data = self._receiver.answers.settled(
            self._batches, outcome, self._opening, keep, self._post.applied
        )
        self._connection.settle(self._answer, data, keep)

    def _late(self, places: Places, patience: Patience, reason: str) -> None:
        if not patience.sync:
            self._accept(places)
            return
        keep = self._connection.keeps(self._answer)
        data = self._receiver.answers.late(
            self._batches, places, self._opening, keep, self._post.applied, reason
        )
        self._connection.settle(self._answer, data, keep)


def is_plain(post: Post, batches: list[Batch]) -> bool:
    """One message on the connection's own stream, and durable is enough: as most requests are."""
    return (
        len(batches) == 1
        and batches[0].lengths is None
        and batches[0].stream.startswith(CONNECTION_STREAM)
        and post.patience is None
        and not post.applied
    )


def _known(intake: Intake, batch: Batch, partition: int, result: Appended) -> list[Stretch] | None:
    """Where the messages of a batch are, if that is known to this process."""
    if not result.repeats or batch.count == 1:
        if result.offset < 0:
            return None
        return [(partition, result.offset, result.offset + batch.count)]
    writer = intake.writers.get(partition)
    if writer is None or batch.count > _PLACES_LOOKED_UP:
        return None
    found: list[Stretch] = []
    for seq in range(batch.seq, batch.seq + batch.count):
        offset = writer.offset_of(batch.peer, batch.stream, seq)
        if offset is None:
            return None
        if found and found[-1][2] == offset:
            found[-1] = (partition, found[-1][1], offset + 1)
        else:
            found.append((partition, offset, offset + 1))
    return found
