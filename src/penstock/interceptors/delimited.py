"""`lines` and `separate`: payloads with a delimiter between them."""

from __future__ import annotations

from penstock.errors import TooLarge
from penstock.interceptors.cutter import Cutter
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.stage import Stage, run
from penstock.limits import MAX_BATCH_EVENTS
from penstock.message import Buffer


class Delimited(Stage):
    """A stream cut at a delimiter. The end of the stream ends the last payload too."""

    frames = True

    def __init__(self, cutter: Cutter) -> None:
        self._cutter = cutter
        self._rest = bytearray()  # since the last delimiter
        self._at = 0  # where the rest begins in the stream

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def feed(self, chunk: Payloads) -> Payloads:
        data = bytes(chunk.blob)
        head = self._head(data)
        if not head:
            return self.give(NOTHING, self._check_rest())
        payloads, error = self._cutter.cut(head, self._at)
        self._at += len(head)
        return self.give(payloads, error or self._check_rest())

    def _head(self, data: bytes) -> bytes:
        """Everything up to the last delimiter; the rest is kept.

        A payload that comes in many small chunks costs no more than one that comes in few: every
        byte is copied and searched a bounded number of times.
        """
        delimiter, rest = self._cutter.delimiter, self._rest
        if len(delimiter) == 1:
            cut = data.rfind(delimiter) + 1
            if not cut:
                rest += data
                return b""
            head = b"".join((rest, data[:cut])) if rest else data[:cut]
            self._rest = bytearray(data[cut:])
            return head
        begun = max(0, len(rest) - len(delimiter) + 1)
        rest += data
        end = self._last_end(begun)
        if not end:
            return b""
        head = bytes(memoryview(rest)[:end])
        del rest[:end]
        return head

    def _last_end(self, begun: int) -> int:
        """Where the last delimiter in the rest ends, looking from `begun` on; 0 if none does."""
        delimiter, rest = self._cutter.delimiter, self._rest
        found = rest.rfind(delimiter, begun)
        if found < 0 or not self._cutter.overlaps:
            return found + len(delimiter) if found >= 0 else 0
        end = 0
        found = rest.find(delimiter, begun)
        while found >= 0:
            end = found + len(delimiter)
            found = rest.find(delimiter, end)
        return end

    def _check_rest(self) -> TooLarge | None:
        """Whether the unfinished payload can still become one that is short enough."""
        cutter = self._cutter
        over = len(self._rest) - cutter.max_length
        if over <= 0:
            return None
        # What may yet turn out to belong to the delimiter does not count.
        end = b"\r" if cutter.strip_cr else cutter.delimiter[:-1]
        if any(self._rest.endswith(end[:size]) for size in range(over, len(end) + 1)):
            return None
        return cutter.too_long(self._at)

    def flush(self) -> Payloads:
        rest, self._rest = bytes(self._rest), bytearray()
        payloads, error = self._cutter.cut(rest, self._at)
        self._at += len(rest)
        if error is not None:
            raise error
        return payloads

    def wrap(self, payloads: Payloads) -> Payloads:
        return run(self._cutter.join(payloads))

    def whole(self, payload: Buffer) -> Payloads:
        payloads, error = self._cutter.cut(bytes(payload), 0, MAX_BATCH_EVENTS)
        if error is not None:
            raise error
        return payloads

    def wrap_whole(self, payload: Buffer) -> bytes:
        return bytes(self._cutter.join(Payloads(payload)))


class Lines(Delimited):
    """One payload a line. A carriage return before the line feed is not part of the payload."""

    def __init__(self, *, max_length: int, keep_empty: bool) -> None:
        super().__init__(_lines(max_length, keep_empty))


class Separate(Delimited):
    """Payloads with a delimiter of one or more bytes between them. Empty ones are payloads too."""

    def __init__(self, *, delimiter: str | bytes, max_length: int) -> None:
        if isinstance(delimiter, str):
            delimiter = delimiter.encode()
        super().__init__(
            Cutter("separate", delimiter, max_length=max_length, keep_empty=True, strip_cr=False)
        )


def cut_lines(data: Buffer, keep_empty: bool, max_length: int) -> Payloads:
    """The lines of a whole body (NDJSON), without line feeds and carriage returns before them.

    The last line need not end. All or nothing: one line over `max_length`, or more than
    `MAX_BATCH_EVENTS` of them, and the whole body is TooLarge.
    """
    payloads, error = _lines(max_length, keep_empty).cut(bytes(data), 0, MAX_BATCH_EVENTS)
    if error is not None:
        raise error
    return payloads


def _lines(max_length: int, keep_empty: bool) -> Cutter:
    return Cutter("lines", b"\n", max_length=max_length, keep_empty=keep_empty, strip_cr=True)
