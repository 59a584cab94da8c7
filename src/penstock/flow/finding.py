"""The receipt of a message, given its id; for receivers and for the admin API. Everything here blocks.

A receipt is found by the message's place. The place is

1. told by whoever asks (`at`: the `Location` of an answer has it), and checked;
2. or known to the writer of its partition, if the sender numbered or named the message;
3. or searched for: in a stream that a connection made, from the second on that its name tells; otherwise
   in the newest messages of its partition. `MAX_SEARCHED_ROWS` are looked through, and no more, and
   one search at a time.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import NoSuchTopic, UnknownMessage
from penstock.flow.receipt import Receipt
from penstock.flow.receipts import Receipts
from penstock.limits import MAX_SEARCHED_ROWS
from penstock.log import Log, TopicName
from penstock.log.interface import Reader
from penstock.message import EventId, began_s, home_partition

_CLOCK_SLACK_S = 2


class Finder:
    """Threads may share it."""

    def __init__(self, log: Log, receipts: Receipts) -> None:
        self._log = log
        self._receipts = receipts
        self._searching = threading.Lock()

    def receipt(
        self,
        topic: TopicName,
        event: EventId,
        at: tuple[int, int] | None = None,
        known: int | None = None,
    ) -> Receipt:
        """`known`: the offset that the writer of its home partition remembers. UnknownMessage says
        why there is no receipt."""
        if at is not None:
            partition, offset = at
            # What could not be read cannot be checked either; that it was there is known.
            if not self._receipts.lost(str(topic), partition, offset, offset + 1):
                self._check(topic, event, partition, offset)
        else:
            exception = self._receipts.find_id(event)
            if exception is not None:
                return exception
            with self._searching:
                partition, offset = self._place(topic, event, known)
        found = self._receipts.find(str(topic), partition, offset)
        return replace(found, id=event)

    def stretches(
        self, topic: TopicName, partition: int, first: EventId, count: int
    ) -> list[tuple[int, int, int]] | None:
        """Where `count` messages of a numbered stream are that were stored in one go or in several:
        partition, offset, and the offset after the last. None if not all of them can be found."""
        last = first.seq + count
        at, left = first.seq, MAX_SEARCHED_ROWS
        found: list[tuple[int, int, int]] = []
        with self._searching:
            reader = self._reader(topic, partition)
            try:
                begin = max(reader.begin(), reader.end() - left)
                for batch in reader.read(begin, max_rows=left):
                    for offset in _offsets(batch, first, at, last):
                        if found and found[-1][2] == offset:
                            found[-1] = (partition, found[-1][1], offset + 1)
                        else:
                            found.append((partition, offset, offset + 1))
                        at += 1
                    if at == last:
                        return found
            finally:
                reader.close()
        return None

    def _check(self, topic: TopicName, event: EventId, partition: int, offset: int) -> None:
        reader = self._reader(topic, partition)
        try:
            if offset < reader.begin():
                raise UnknownMessage(f"the message at {partition}:{offset} is no longer kept")
            found, _ = _search(reader, event, offset, 1)
        finally:
            reader.close()
        if found is None:
            raise UnknownMessage(f"there is no message {event} at {partition}:{offset}")

    def _place(self, topic: TopicName, event: EventId, known: int | None) -> tuple[int, int]:
        partitions = self._log.config(topic).partitions
        began = began_s(event.stream)
        if began is not None:
            return self._search_all(topic, event, began, partitions)
        partition = home_partition(event.peer, event.stream, self._log.homes(topic))
        if known is not None:
            return partition, known
        reader = self._reader(topic, partition)
        try:
            newest = max(reader.begin(), reader.end() - MAX_SEARCHED_ROWS)
            offset, _ = _search(reader, event, newest, MAX_SEARCHED_ROWS)
        finally:
            reader.close()
        if offset is None:
            raise _not_found(event)
        return partition, offset

    def _search_all(
        self, topic: TopicName, event: EventId, began: int, partitions: int
    ) -> tuple[int, int]:
        """Which of its partitions the process chose for its connection, nobody remembers."""
        left = MAX_SEARCHED_ROWS
        for partition in range(partitions):
            reader = self._reader(topic, partition)
            try:
                start = reader.offset_at((began - _CLOCK_SLACK_S) * 1_000_000)
                offset, searched = _search(reader, event, start, left)
            finally:
                reader.close()
            if offset is not None:
                return partition, offset
            left -= searched
        raise _not_found(event)

    def _reader(self, topic: TopicName, partition: int) -> Reader:
        try:
            return self._log.reader(topic, partition)
        except NoSuchTopic as error:
            raise UnknownMessage(str(error)) from None


def _not_found(event: EventId) -> UnknownMessage:
    return UnknownMessage(
        f"there is no message {event}, or too many came after it to find it by its id alone: ask with "
        "?at=PARTITION:OFFSET, as in the Location of its answer"
    )


def _search(reader: Reader, event: EventId, start: int, rows: int) -> tuple[int | None, int]:
    """The offset of a message among so many from `start` on, and how many were looked through."""
    searched = 0
    if rows <= 0:
        return None, 0
    for batch in reader.read(start, max_rows=rows):
        searched += batch.num_rows
        own = _rows_of(batch, event)
        if own is None:
            continue
        numbers = batch.column("seq").to_numpy()[own]
        # Numbers of a stream rise, but for those of replays, which come anywhere behind.
        hits = np.flatnonzero(numbers == event.seq)
        if len(hits):
            return int(batch.column("offset").to_numpy()[own][hits[0]]), searched
        if (numbers > event.seq).any():
            break  # it was passed
    return None, searched


def _offsets(batch: pa.RecordBatch, stream: EventId, first: int, last: int) -> list[int]:
    """Of the messages of a stream numbered from `first` up to `last`, one after another."""
    own = _rows_of(batch, stream)
    if own is None:
        return []
    numbers = batch.column("seq").to_numpy()[own]
    begin, end = np.searchsorted(numbers, (first, last))
    if begin == end or numbers[begin] != first or numbers[end - 1] - first != end - 1 - begin:
        return []
    offsets: list[int] = batch.column("offset").to_numpy()[own][begin:end].tolist()
    return offsets


def _rows_of(batch: pa.RecordBatch, event: EventId) -> npt.NDArray[np.bool_] | None:
    """Which rows are of its stream; None if there are none."""
    own = _rows_with(batch.column("stream"), event.stream)
    if own is None:
        return None
    peers = _rows_with(batch.column("peer"), event.peer)
    return None if peers is None else own & peers


def _rows_with(column: pa.DictionaryArray, word: str) -> npt.NDArray[np.bool_] | None:
    found: npt.NDArray[np.bool_]
    code = pc.index(column.dictionary, pa.scalar(word, column.dictionary.type)).as_py()
    if code < 0:
        return None
    found = column.indices.to_numpy() == code
    return found
