"""Requests of an appender: what is on its way, and the connection to the owner that it goes over."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from functools import partial

import pyarrow as pa

from penstock.errors import InvalidMessage, LogClosed, LogError, Unavailable
from penstock.log.embedded.appends.place import Place
from penstock.log.embedded.appends.wire import (
    ANSWER,
    REFUSED,
    Frames,
    Result,
    decode_answer,
    decode_refusal,
    encode_batches,
    encode_rows,
)
from penstock.log.embedded.rows import RowsPart
from penstock.log.embedded.writer import PartitionWriter
from penstock.log.interface import Appended
from penstock.message import Batch, Buffer

_READ_BYTES = 64 * 1024

GONE = (Unavailable, LogClosed)
"""Answers of a process that does not own the partition, or no longer: nothing was stored."""


class Lost(Exception):
    """The owner has gone, or has stopped owning. Whether it stored the request is not known."""


class Batches:
    """Batches on their way; those that an owner has settled are not sent to the next one."""

    def __init__(self, place: Place, batches: list[Batch]) -> None:
        self._place = place
        self._left = dict(enumerate(batches))
        self._results: dict[int, Result] = {}

    def store(self, writer: PartitionWriter) -> list[Appended]:
        stored = writer.append(list(self._left.values()))
        self._results |= zip(self._left, stored, strict=True)
        return self._settled()

    def send(self, remote: Remote) -> list[Appended]:
        topic, partition = str(self._place.topic), self._place.partition
        waiting = list(self._left.values())
        results = remote.ask(lambda number: encode_batches(number, topic, partition, waiting))
        if len(results) != len(waiting):
            raise Lost("the owner cannot be understood: it answers for other batches")
        gone: Result | None = None
        for index, result in zip(list(self._left), results, strict=True):
            if isinstance(result, GONE):
                gone = result
            else:
                self._results[index] = result
                del self._left[index]
        if gone is not None:
            raise Lost(str(gone))
        return self._settled()

    def _settled(self) -> list[Appended]:
        return [_or_raise(result) for _, result in sorted(self._results.items())]


class Rows:
    """The rows of one number on their way. Its parts are sent one by one, and all of them again to the
    next owner, which knows those that are stored."""

    def __init__(self, place: Place, rows: pa.RecordBatch, parts: list[RowsPart]) -> None:
        self._place = place
        self._rows = rows
        self._parts = parts

    def store(self, writer: PartitionWriter) -> list[Appended]:
        first = self._parts[0]
        stored = writer.append_rows(self._rows, producer=first.producer, number=first.number)
        return [stored]

    def send(self, remote: Remote) -> list[Appended]:
        topic, partition = str(self._place.topic), self._place.partition
        stored: list[Appended] = []
        for part in self._parts:
            encode = partial(encode_rows, topic=topic, partition=partition, part=part)
            for result in remote.ask(encode):
                if isinstance(result, GONE):
                    raise Lost(str(result))
                stored.append(_or_raise(result))
        repeats = sum(one.repeats for one in stored)
        return [Appended(stored[0].offset, self._rows.num_rows, repeats)]


class Remote:
    """A connection to the owner. One request at a time: the next is sent once this one is durable."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._frames = Frames()
        self._number = 0
        self.interrupted = False
        """Whether a request was left in the middle: nothing more can be sent after it."""

    def ask(self, encode: Callable[[int], Sequence[Buffer]]) -> list[Result]:
        self._number += 1
        parts = encode(self._number)
        self.interrupted = True
        try:
            for part in parts:
                self._sock.sendall(part)
            results = self._answer()
        except TimeoutError:
            raise Unavailable("the owner of the partition does not answer") from None
        except OSError as error:
            raise Lost(f"the owner has gone ({error})") from None
        self.interrupted = False
        return results

    def _answer(self) -> list[Result]:
        while True:
            data = self._sock.recv(_READ_BYTES)
            if not data:
                raise Lost("the owner has gone")
            try:
                for frame in self._frames.feed(data):
                    if frame.kind == REFUSED:
                        raise LogError(f"the owner refused: {decode_refusal(frame.body)}")
                    if frame.kind == ANSWER and frame.number == self._number:
                        return decode_answer(frame.body)
            except InvalidMessage as error:
                raise Lost(f"the owner cannot be understood: {error}") from None

    def close(self) -> None:
        self._sock.close()


def _or_raise(result: Result) -> Appended:
    if not isinstance(result, Appended):
        raise result
    return result
