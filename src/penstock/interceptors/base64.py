"""`base64`: RFC 4648 with padding, nothing ignored, not even line ends.

On a stream, each chunk of the way out is padded by itself, so that nothing has to be held back for
the next; so on the way in a group of four with padding may be followed by more. In a payload that
stands by itself, padding is only at the end.

Many payloads are decoded in one go: groups of four do not care where a payload ends, so the padding
is read as zeros and what those decode to is taken out again.
"""

from __future__ import annotations

import binascii
import re
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import InvalidMessage
from penstock.interceptors.interface import NOTHING, Payloads
from penstock.interceptors.stage import Each, Stage, run
from penstock.message import Buffer

_PAD: Final = ord("=")
_PAD_AS_ZERO: Final = bytes.maketrans(b"=", b"A")
_BEGUN: Final = re.compile(rb"[A-Za-z0-9+/]{0,3}|[A-Za-z0-9+/]{2}=")  # of a group, less than four
_ALPHABET: Final = re.compile(rb"[A-Za-z0-9+/=]*")


class Base64(Stage):
    def __init__(self) -> None:
        self._rest = b""  # less than a group of four
        self._at = 0

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def feed(self, chunk: Payloads) -> Payloads:
        data = b"".join((self._rest, chunk.blob))
        whole = len(data) & ~3
        self._rest = data[whole:]
        error = None
        try:
            decoded, _ = _decode(data[:whole])
        except _NotBase64:
            good = _first_wrong(data) & ~3
            decoded, _ = _decode(data[:good])
            error = _invalid(data, self._at)
        if error is None and not _BEGUN.fullmatch(self._rest):
            error = _invalid(data, self._at)
        self._at += whole
        return self.give(run(decoded), error)

    def flush(self) -> Payloads:
        if self._rest:
            raise _cut_short(self._at + len(self._rest))
        return NOTHING

    def wrap(self, payloads: Payloads) -> Payloads:
        return run(self.wrap_whole(payloads.blob))

    def whole(self, payload: Buffer) -> Payloads:
        data = bytes(payload)
        try:
            if len(data) % 4:
                raise _NotBase64
            decoded, pads = _decode(data)
            if len(pads) and int(pads[0]) < len(data) - 2:
                raise _NotBase64
        except _NotBase64:
            raise _invalid(data, 0, padded_inside=False) from None
        return Payloads(decoded)

    def wrap_whole(self, payload: Buffer) -> bytes:
        return binascii.b2a_base64(payload, newline=False)


class EachBase64(Each):
    """Decodes all payloads of a chunk together. If anything is wrong it goes through them one by
    one, to keep those before the first that is wrong and to say which one that is."""

    def feed(self, chunk: Payloads) -> Payloads:
        if chunk.lengths is None:
            return super().feed(chunk)
        ends = np.cumsum(chunk.lengths, dtype=np.int64)
        data = bytes(chunk.blob)
        try:
            if (chunk.lengths % 4).any():
                raise _NotBase64
            decoded, pads = _decode(data)
        except _NotBase64:
            return super().feed(chunk)
        lengths = chunk.lengths // 4 * 3
        if len(pads):
            # The payload that each padding byte is in; it must be in the last group there.
            owner = np.searchsorted(ends, pads, side="right")
            if (pads < ends[owner] - 2).any():
                return super().feed(chunk)
            lengths -= np.bincount(owner, minlength=len(ends)).astype(np.uint32)
        self._seen += chunk.count
        return Payloads(decoded, lengths)


class _NotBase64(Exception):
    """Something is wrong somewhere; `_first_wrong` finds where."""


def _decode(data: bytes) -> tuple[bytes, npt.NDArray[np.int64]]:
    """What whole groups of four stand for, and where in `data` there is padding."""
    view = np.frombuffer(data, np.uint8)
    pads = np.flatnonzero(view == _PAD) if b"=" in data else _NO_PADS
    try:
        if not len(pads):
            return binascii.a2b_base64(data, strict_mode=True), pads
        decoded = binascii.a2b_base64(data.translate(_PAD_AS_ZERO), strict_mode=True)
    except binascii.Error:
        raise _NotBase64 from None
    place = pads & 3
    if (place < 2).any() or (view[pads[place == 2] + 1] != _PAD).any():
        raise _NotBase64
    if int(pads[0]) >= len(data) - 2:
        return decoded[: -len(pads)], pads
    kept = np.ones(len(decoded), np.bool_)
    kept[pads // 4 * 3 + place - 1] = False
    return np.frombuffer(decoded, np.uint8)[kept].tobytes(), pads


_NO_PADS: Final = np.empty(0, np.int64)


def _first_wrong(data: bytes) -> int:
    """The first byte that cannot stand where it does; padding inside can. The end if all can."""
    match = _ALPHABET.match(data)
    assert match is not None
    wrong = match.end()
    view = np.frombuffer(data, np.uint8)
    pads = np.flatnonzero(view[:wrong] == _PAD)
    place = pads & 3
    early = pads[place < 2]
    after = pads[place == 2] + 1
    after = after[after < wrong]
    unpaired = after[view[after] != _PAD]
    for found in (early, unpaired):
        if len(found):
            wrong = min(wrong, int(found[0]))
    return wrong


def _invalid(data: bytes, at: int, *, padded_inside: bool = True) -> InvalidMessage:
    wrong = _first_wrong(data)
    if not padded_inside:
        pad = data.find(b"=", 0, wrong)
        if pad >= 0:
            wrong = min(wrong, (pad & ~3) + 4)
    if wrong == len(data):
        return _cut_short(at + wrong)
    return InvalidMessage(
        f"base64: byte {at + wrong}: {data[wrong : wrong + 1]!r} cannot stand here; send base64 "
        "with its padding and without line ends"
    )


def _cut_short(at: int) -> InvalidMessage:
    return InvalidMessage(f"base64: byte {at}: the end came in the middle of a group of four")
