"""Lines of a file as columns: some thousand at a time, never one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np

from penstock.errors import TooLarge
from penstock.limits import MAX_MESSAGE_BYTES
from penstock.message import Lengths

_READ_BYTES = 1 << 20


@dataclass(slots=True)
class Lines:
    """Payloads end to end, their lengths, and how many bytes of the file they stood for."""

    blob: bytes
    lengths: Lengths
    read_bytes: int


def cut_lines(file: BinaryIO, limit_bytes: int = MAX_MESSAGE_BYTES) -> Iterator[Lines]:
    """A message a line, without its newline (or CR and newline). The last line may lack one.

    TooLarge names the line that is over the limit; what came before it has been given out.
    """
    read = getattr(file, "read1", file.read)  # what a pipe has now, without waiting for more
    rest: list[bytes] = []
    rest_bytes = 0
    number = 1
    while chunk := read(_READ_BYTES):
        head, newline, tail = chunk.rpartition(b"\n")
        if newline:
            text = b"".join([*rest, head])
            yield _lines(text.split(b"\n"), number, limit_bytes, len(text) + 1)
            number += text.count(b"\n") + 1
            rest, rest_bytes = [], 0
        rest.append(tail)
        rest_bytes += len(tail)
        if rest_bytes > limit_bytes + 1:  # one more, for the CR
            raise _too_large(number, limit_bytes)
    if rest_bytes:
        yield _lines([b"".join(rest)], number, limit_bytes, rest_bytes)


def _lines(lines: list[bytes], number: int, limit_bytes: int, read_bytes: int) -> Lines:
    if any(line.endswith(b"\r") for line in lines):
        lines = [line.removesuffix(b"\r") for line in lines]
    lengths = np.fromiter(map(len, lines), np.uint32, len(lines))
    if lengths.max() > limit_bytes:
        raise _too_large(number + int(np.argmax(lengths > limit_bytes)), limit_bytes)
    return Lines(b"".join(lines), lengths, read_bytes)


def _too_large(number: int, limit_bytes: int) -> TooLarge:
    return TooLarge(f"line {number} is over the limit of {limit_bytes} bytes for a message")
