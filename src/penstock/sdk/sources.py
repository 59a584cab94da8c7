"""Replayable sources: files that can be read again from where Penstock is.

Each gives pairs of a sequence number and a payload. The number is the position in the file *behind* the message,
so `reset` with a point of reference is a seek, and a program that dies needs no memory of its own:

    with SourceExtension().connect("127.0.0.1", 7100) as extension:
        extension.feed(LineFileSource("orders.log"), partition="orders.log")

A file may grow between runs; what was read of it must stay as it is. That is checked where it can be.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Protocol

from penstock.errors import InvalidMessage, TooLarge
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES


class ReplayableSource(Protocol):
    """What `feed` takes. Sequence numbers rise, and mean the same message every time."""

    def reset(self, point_of_reference: int | None) -> None:
        """Begin after the message of this number; None: at the beginning."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]: ...


class FileSource:
    """What the sources that read files have in common."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._position = 0

    def reset(self, point_of_reference: int | None) -> None:
        position = point_of_reference or 0
        with open(self._path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if position > size:
                raise InvalidMessage(
                    f"{self._path} has {size} bytes, and was read up to byte {position} before: it is another file "
                    "now; give it a partition of its own"
                )
            self._check(file, position, size)
        self._position = position

    def _check(self, file: BinaryIO, position: int, size: int) -> None:
        """That a message can end there."""

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with open(self._path, "rb") as file:
            file.seek(self._position)
            while (payload := self._next(file)) is not None:
                self._position = file.tell()
                yield self._position, payload

    def _next(self, file: BinaryIO) -> bytes | None:
        """The next message; None if no whole one is there."""
        raise NotImplementedError


class LineFileSource(FileSource):
    """A message a line, without its end. A last line without an end is taken only if `unfinished`: whoever
    writes the file may not be done with it."""

    def __init__(self, path: str | Path, *, unfinished: bool = False) -> None:
        super().__init__(path)
        self._unfinished = unfinished

    def _check(self, file: BinaryIO, position: int, size: int) -> None:
        file.seek(max(0, position - 1))
        if position and position < size and file.read(1) != b"\n":
            raise InvalidMessage(
                f"{self._path}: byte {position} is in the middle of a line, where none ended before; is it "
                "another file now?"
            )

    def _next(self, file: BinaryIO) -> bytes | None:
        line = file.readline(MAX_CONNECTOR_FRAME_BYTES + 1)
        if len(line) > MAX_CONNECTOR_FRAME_BYTES:
            raise TooLarge(
                f"{self._path}, byte {self._position}: a line of more than {len(line) - 1} bytes"
            )
        if not line or not (line.endswith(b"\n") or self._unfinished):
            return None
        return line.removesuffix(b"\n").removesuffix(b"\r")


class FramedFileSource(FileSource):
    """Messages after their lengths: a big-endian number of `length_bytes` (1, 2, 4 or 8), then so many bytes."""

    def __init__(self, path: str | Path, *, length_bytes: int = 4) -> None:
        super().__init__(path)
        self._length = struct.Struct({1: ">B", 2: ">H", 4: ">I", 8: ">Q"}[length_bytes])

    def _next(self, file: BinaryIO) -> bytes | None:
        head = file.read(self._length.size)
        if len(head) < self._length.size:
            return None
        (length,) = self._length.unpack(head)
        if length > MAX_CONNECTOR_FRAME_BYTES:
            raise TooLarge(
                f"{self._path}, byte {self._position}: a message of {length} bytes is over the limit of "
                f"{MAX_CONNECTOR_FRAME_BYTES}, or the file is not framed like this"
            )
        payload = file.read(length)
        return payload if len(payload) == length else None


class Throttled:
    """Another source, at no more than so many messages a second."""

    def __init__(
        self,
        source: ReplayableSource,
        per_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._interval_s = 1 / per_s
        self._clock = clock
        self._sleep = sleep

    def reset(self, point_of_reference: int | None) -> None:
        self._source.reset(point_of_reference)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        due_s = self._clock()
        for pair in self._source:
            wait_s = due_s - self._clock()
            if wait_s > 0:
                self._sleep(wait_s)
            # What was late is not made up for: a pause is no reason for a burst.
            due_s = max(due_s, self._clock()) + self._interval_s
            yield pair
