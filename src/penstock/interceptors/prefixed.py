"""`length_prefixed` and `textual_length_prefixed`: payloads after their lengths.

The next length stands where the last payload ends, so the headers have to be walked one by one.
The walk does nothing else: it notes slices, and one join makes the blob. A length is checked
against the limit before anything is kept for it: what a sender declares decides no allocation.
"""

from __future__ import annotations

import re
import struct
from abc import abstractmethod
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.stage import Stage, join, of, run
from penstock.interceptors.weaving import binary, can_weave, weave
from penstock.limits import MAX_BATCH_EVENTS, MAX_LENGTH_DIGITS
from penstock.message import Buffer, Lengths

BLOCK_FRAMES: Final = 65_536  # slices noted before they are joined: bounds the memory they take

_U64: Final = struct.Struct(">Q")
_DIGITS: Final = re.compile(rb"[0-9]*")


class Prefixed(Stage):
    """A stream of frames: a header that tells the length, and the payload."""

    frames = True
    name: str

    def __init__(self, *, max_length: int) -> None:
        self._max_length = max_length
        self._rest = bytearray()  # an unfinished frame
        self._need = 0  # its size, 0 while its header is not whole
        self._at = 0  # where it begins in the stream

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    @abstractmethod
    def _walk(self, data: bytes, start: int, pieces: list[bytes]) -> int:
        """Add payloads from `start` on to `pieces` until `BLOCK_FRAMES` or the last whole frame.

        Returns where that ends. Sets `_need` for the frame after it.
        """

    def feed(self, chunk: Payloads) -> Payloads:
        if self._rest:
            self._rest += chunk.blob
            if len(self._rest) < self._need:
                return NOTHING
            data = bytes(self._rest)
        else:
            data = bytes(chunk.blob)
        payloads, error, end = self._cut(data, None)
        self._rest = bytearray(memoryview(data)[end:])
        self._at += end
        return self.give(payloads, error)

    def _cut(
        self, data: bytes, max_count: int | None
    ) -> tuple[Payloads, InvalidMessage | None, int]:
        found: list[Payloads] = []
        error: InvalidMessage | None = None
        count = at = 0
        more = True
        while more and error is None:
            pieces: list[bytes] = []
            try:
                at = self._walk(data, at, pieces)
            except InvalidMessage as reason:
                error = reason
            more = len(pieces) == BLOCK_FRAMES
            count += len(pieces)
            found.append(of(pieces))
            if max_count is not None and count > max_count:
                error = TooLarge(
                    f"{self.name}: byte {at}: more than {max_count} payloads in one message; "
                    "send fewer at a time"
                )
        return join(found), error, at

    def flush(self) -> Payloads:
        if self._rest:
            raise self._cut_short(self._rest, 0)
        return NOTHING

    def whole(self, payload: Buffer) -> Payloads:
        data = bytes(payload)
        fresh = type(self)(max_length=self._max_length)
        payloads, error, end = fresh._cut(data, MAX_BATCH_EVENTS)
        if error is None and end < len(data):
            error = fresh._cut_short(memoryview(data)[end:], end)
        if error is not None:
            raise error
        return payloads

    def _cut_short(self, rest: Buffer, at: int) -> InvalidMessage:
        need = f"{self._need} bytes" if self._need else "a whole length"
        return InvalidMessage(
            f"{self.name}: byte {self._at + at}: the end came {len(rest)} bytes into a frame that "
            f"needs {need}; send frames whole"
        )

    @abstractmethod
    def _header(self, length: int) -> bytes: ...

    @abstractmethod
    def _headers(self, lengths: Lengths) -> Any:
        """All of them, as a binary column."""

    def wrap(self, payloads: Payloads) -> Payloads:
        lengths = payloads.lengths
        if (
            lengths is not None
            and can_weave(payloads, MAX_LENGTH_DIGITS + 1)
            and int(lengths.max()) <= self._max_length
        ):
            return run(weave(self._headers(lengths), payloads, b""))
        return run(b"".join([self.wrap_whole(payload) for payload in payloads]))

    def wrap_whole(self, payload: Buffer) -> bytes:
        length = len(payload)
        if length > self._max_length:
            raise TooLarge(
                f"{self.name}: a payload of {length} bytes cannot be sent; the limit "
                f"(max_length) is {self._max_length}"
            )
        return self._header(length) + payload


class LengthPrefixed(Prefixed):
    """Lengths as unsigned 64-bit big-endian numbers."""

    name = "length_prefixed"

    def _walk(self, data: bytes, start: int, pieces: list[bytes]) -> int:
        size, limit, unpack, add = len(data), self._max_length, _U64.unpack_from, pieces.append
        for _ in range(BLOCK_FRAMES):
            begin = start + 8
            if begin > size:
                self._need = 0
                break
            (length,) = unpack(data, start)
            if length > limit:
                raise TooLarge(
                    f"{self.name}: byte {self._at + start}: a payload of {length} bytes is "
                    f"announced; the limit (max_length) is {limit}"
                )
            end = begin + length
            if end > size:
                self._need = end - start
                break
            add(data[begin:end])
            start = end
        return start

    def _header(self, length: int) -> bytes:
        return _U64.pack(length)

    def _headers(self, lengths: Lengths) -> Any:
        ends = np.arange(0, 8 * len(lengths) + 1, 8, dtype=np.int32)
        return binary(ends, lengths.astype(">u8"))


class TextualLengthPrefixed(Prefixed):
    """Lengths as decimal digits and a space: `5 hello`. Zeros may lead, signs may not."""

    name = "textual_length_prefixed"

    def _walk(self, data: bytes, start: int, pieces: list[bytes]) -> int:
        size, limit, find, add = len(data), self._max_length, data.find, pieces.append
        for _ in range(BLOCK_FRAMES):
            space = find(b" ", start, start + MAX_LENGTH_DIGITS + 1)
            if space < 0:
                self._need = 0
                self._check_header(data[start : start + MAX_LENGTH_DIGITS + 1], start)
                break
            digits = data[start:space]
            length = int(digits) if digits.isdigit() else limit + 1
            if length > limit:
                self._check_header(data[start : space + 1], start)
            begin = space + 1
            end = begin + length
            if end > size:
                self._need = end - start
                break
            add(data[begin:end])
            start = end
        return start

    def _check_header(self, header: bytes, at: int) -> None:
        """Refuse what is no length, or cannot become one when more of it comes.

        Looks at it from the left, so that the reason is the same however the stream is cut.
        """
        digits = _DIGITS.match(header)
        assert digits is not None
        end = digits.end()
        if int(digits[0] or b"0") > self._max_length:
            raise TooLarge(
                f"{self.name}: byte {self._at + at}: a payload is announced that is longer than "
                f"the limit (max_length), {self._max_length} bytes"
            )
        if end > MAX_LENGTH_DIGITS:
            raise TooLarge(
                f"{self.name}: byte {self._at + at}: a length has more than "
                f"{MAX_LENGTH_DIGITS} digits"
            )
        if end < len(header):
            raise InvalidMessage(
                f"{self.name}: byte {self._at + at + end}: expected digits and one space before a "
                f"payload, found {header[end : end + 1]!r}"
            )

    def _header(self, length: int) -> bytes:
        return b"%d " % length

    def _headers(self, lengths: Lengths) -> Any:
        digits = pa.array(lengths).cast(pa.string())
        return pc.binary_join_element_wise(digits, " ", "").cast(pa.binary())


def cut_length_prefixed(data: Buffer, max_length: int) -> Payloads:
    """The payloads of a whole length-prefixed body.

    All or nothing: a frame that is over `max_length` or not whole, or more than `MAX_BATCH_EVENTS`
    frames, and the whole body is refused.
    """
    return LengthPrefixed(max_length=max_length).whole(data)
