"""Cutting runs of bytes at a delimiter.

This is where a busy stream spends its time, so no Python runs per payload: NumPy finds the
delimiters, and `bytes.replace` takes them out. Short chunks are cut by `bytes.split`, which starts
faster. Both work in blocks, so that a long run of nothing but delimiters takes memory in
proportion to a block and not to the run.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.stage import join, of
from penstock.interceptors.weaving import can_weave, weave
from penstock.limits import KiB
from penstock.message import Buffer, Lengths

BLOCK_BYTES: Final = 256 * KiB
SHORT_BYTES: Final = 16 * KiB  # up to here, with few payloads, NumPy's fixed costs are not worth it
FEW: Final = 64
DENSE_BYTES: Final = 16  # mean payload below which `translate` beats `replace`


class Cutter:
    """Cuts runs of bytes at a delimiter. Knows nothing of streams."""

    __slots__ = ("delimiter", "keep_empty", "max_length", "name", "overlaps", "strip_cr")

    def __init__(
        self, name: str, delimiter: bytes, *, max_length: int, keep_empty: bool, strip_cr: bool
    ) -> None:
        self.name = name
        self.delimiter = delimiter
        self.max_length = max_length
        self.keep_empty = keep_empty
        self.strip_cr = strip_cr
        # Whether two of them can share bytes, as in `a||b|||c`: then the first one counts.
        self.overlaps = any(
            delimiter.startswith(delimiter[start:]) for start in range(1, len(delimiter))
        )

    def cut(
        self, data: bytes, at: int, max_count: int | None = None
    ) -> tuple[Payloads, InvalidMessage | None]:
        """The payloads in `data`, up to the first that cannot be taken, and the reason for that.

        What follows the last delimiter is a payload too, unless it is empty. `at` is the position
        of `data` in its stream.
        """
        if self.strip_cr and data.endswith(b"\r"):
            data = data[:-1]  # the sender went away in the middle of a line end
        if not data:
            return NOTHING, None
        first = data.find(self.delimiter)
        if first < 0 or first + len(self.delimiter) == len(data):
            return self._cut_one(data, first, at)
        if len(self.delimiter) > 1:
            return self._cut_by_splitting(data, at, max_count)
        if len(data) <= SHORT_BYTES and data.count(self.delimiter) <= FEW:
            return self._cut_by_splitting(data, at, max_count)
        return self._cut_by_scanning(data, at, max_count)

    def _cut_one(self, data: bytes, end: int, at: int) -> tuple[Payloads, InvalidMessage | None]:
        """For a single payload, as a datagram or the line of a patient sender has it."""
        if end >= 0:
            data = data[:end]
            if self.strip_cr and data.endswith(b"\r"):
                data = data[:-1]
        if len(data) > self.max_length:
            return NOTHING, self.too_long(at)
        return (Payloads(data) if data or self.keep_empty else NOTHING), None

    def _cut_by_splitting(
        self, data: bytes, at: int, max_count: int | None
    ) -> tuple[Payloads, InvalidMessage | None]:
        """For any delimiter, and for few payloads."""
        found: list[Payloads] = []
        start = count = 0
        while start < len(data):
            block = self._block(data, start)
            *pieces, rest = block.split(self.delimiter)
            used = len(block) - len(rest)
            if self.strip_cr and b"\r" in block:
                pieces = [piece.removesuffix(b"\r") for piece in pieces]
            if rest and start + len(block) == len(data):
                pieces.append(rest)
                used = len(block)
            error = None
            if len(block) > self.max_length:
                pieces, error = self._check_lengths(pieces, block, at + start)
            if not self.keep_empty:
                pieces = [piece for piece in pieces if piece]
            found.append(of(pieces))
            count += len(pieces)
            if max_count is not None and count > max_count:
                return NOTHING, self._too_many(at + start, max_count)
            if error is not None:
                return join(found), error
            start += used
        return join(found), None

    def _block(self, data: bytes, start: int) -> bytes:
        """The next part of `data`, with at least one delimiter in it or else up to the end."""
        stop = start + BLOCK_BYTES
        if len(data) <= stop:
            return data[start:]
        if data.find(self.delimiter, start, stop) < 0:
            # One that began in this part would have been found if it ended in it.
            found = data.find(self.delimiter, stop - len(self.delimiter) + 1)
            stop = len(data) if found < 0 else found + len(self.delimiter)
        return data[start:stop]

    def _check_lengths(
        self, pieces: list[bytes], block: bytes, at: int
    ) -> tuple[list[bytes], TooLarge | None]:
        """The pieces before the first that is too long."""
        for index, piece in enumerate(pieces):
            if len(piece) > self.max_length:
                position = 0
                for _ in range(index):
                    position = block.index(self.delimiter, position) + len(self.delimiter)
                return pieces[:index], self.too_long(at + position)
        return pieces, None

    def _cut_by_scanning(
        self, data: bytes, at: int, max_count: int | None
    ) -> tuple[Payloads, InvalidMessage | None]:
        """For a delimiter of one byte, and many payloads."""
        view = np.frombuffer(data, np.uint8)
        has_cr = self.strip_cr and b"\r" in data
        found: list[Lengths] = []
        count = line_ends = crs = 0
        begin = 0  # of the first payload that is not found yet
        for start in range(0, len(data), BLOCK_BYTES):
            ends = self._ends(view, start)
            if not len(ends):
                continue
            lengths = np.empty(len(ends), np.uint32)
            lengths[0] = ends[0] - begin
            np.subtract(ends[1:], ends[:-1], out=lengths[1:], casting="unsafe")
            lengths[1:] -= 1
            if has_cr:
                crs += self._drop_crs(view, ends, lengths)
            long = lengths > self.max_length
            if long.any():
                good = int(np.argmax(long))
                begin = int(ends[good - 1]) + 1 if good else begin
                found.append(self._wanted(lengths[:good]))
                blob = self._without_delimiters(data[:begin], dense=False, crs=-1)
                return Payloads(blob, np.concatenate(found)), self.too_long(at + begin)
            begin = int(ends[-1]) + 1
            line_ends += len(ends)
            found.append(self._wanted(lengths))
            count += len(found[-1])
            if max_count is not None and count > max_count:
                return NOTHING, self._too_many(at + start, max_count)
        dense = line_ends * DENSE_BYTES > len(data)
        blob = self._without_delimiters(data, dense=dense, crs=crs)
        return Payloads(blob, np.concatenate(found)), None

    def _ends(self, view: npt.NDArray[np.uint8], start: int) -> npt.NDArray[np.int64]:
        """Where payloads end in one block: at delimiters, and at the end of the data."""
        stop = start + BLOCK_BYTES
        ends = np.flatnonzero(view[start:stop] == self.delimiter[0])
        if start:
            ends += start
        if stop >= len(view) and view[-1] != self.delimiter[0]:
            ends = np.append(ends, len(view))
        return ends

    def _drop_crs(
        self, view: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], lengths: Lengths
    ) -> int:
        """Shorten the lines that end with a carriage return and a line feed; how many do."""
        # A line feed at 0 looks at the last byte instead; its length of 0 rules it out.
        dropped = (view[ends - 1] == 13) & (lengths > 0)
        if ends[-1] == len(view):
            dropped[-1] = False  # no line feed
        lengths -= dropped
        return int(np.count_nonzero(dropped))

    def _wanted(self, lengths: Lengths) -> Lengths:
        return lengths if self.keep_empty or lengths.all() else lengths[lengths > 0]

    def _without_delimiters(self, data: bytes, *, dense: bool, crs: int) -> bytes:
        """`crs` carriage returns belong to line ends; -1 if that is not known."""
        ends = self.delimiter
        if crs and self.strip_cr:
            if data.count(b"\r") == crs:
                ends = b"\r\n"  # all of them, so single bytes can be taken out, which is fast
            else:
                data = data.replace(b"\r\n", b"")
        if dense:
            return data.translate(None, ends)
        for end in ends:
            data = data.replace(bytes((end,)), b"")
        return data

    def _too_many(self, at: int, max_count: int) -> TooLarge:
        return TooLarge(
            f"{self.name}: byte {at}: more than {max_count} payloads in one message; "
            "send fewer at a time"
        )

    def too_long(self, at: int) -> TooLarge:
        return TooLarge(
            f"{self.name}: byte {at}: a payload begins here that is longer than "
            f"{self.max_length} bytes; raise max_length, or send shorter ones"
        )

    def join(self, payloads: Payloads) -> Buffer:
        """The way out: the payloads with the delimiter after each, if it can be told from them."""
        surely_apart = self._surely_apart(payloads)
        if surely_apart and can_weave(payloads, len(self.delimiter)):
            return weave(None, payloads, self.delimiter)
        pieces = [bytes(payload) for payload in payloads]
        if not surely_apart:
            for piece in pieces:
                self._check_out(piece)
        pieces.append(b"")
        return self.delimiter.join(pieces)

    def _surely_apart(self, payloads: Payloads) -> bool:
        """A look at the whole that spares looking at each; False says nothing."""
        blob = bytes(payloads.blob)
        lengths = payloads.lengths
        if lengths is None:
            return False
        return (
            self.delimiter[:1] not in blob
            and not (self.strip_cr and b"\r" in blob)
            and int(lengths.max(initial=0)) <= self.max_length
            and (self.keep_empty or bool(lengths.all()))
        )

    def _check_out(self, piece: bytes) -> None:
        reason = None
        if len(piece) > self.max_length:
            raise TooLarge(
                f"{self.name}: a payload of {len(piece)} bytes cannot be sent; the limit "
                f"(max_length) is {self.max_length}"
            )
        # The last bytes of a payload and the first of the delimiter may form an earlier delimiter.
        end = (piece + self.delimiter).find(self.delimiter)
        if end != len(piece):
            reason = f"it has the delimiter {self.delimiter!r} at byte {end}"
        elif self.strip_cr and piece.endswith(b"\r"):
            reason = "it ends with a carriage return, which would be taken for part of the line end"
        elif not piece and not self.keep_empty:
            reason = "it is empty, and empty payloads are skipped (keep_empty)"
        if reason is not None:
            raise InvalidMessage(
                f"{self.name}: a payload cannot be sent: {reason}; use length_prefixed instead"
            )
