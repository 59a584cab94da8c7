"""Many MESSAGE frames at once, between a buffer and columns. No Python runs for each message.

A frame says where the next one begins, so they have to be found one after another. Where they are small
that is done the other way round: every place that looks like the head of a MESSAGE is found at once,
and the chain that begins at the first frame is followed through those places. What merely looks like a
head (inside a payload) is not on the chain, and falls out. Where frames are large, walking from one to the next is
cheaper than looking at every byte.

Payloads and keys become Arrow arrays with one copy, made by Arrow: the buffer is described as an array
whose elements are keys, payloads and what lies between them, and the elements that count are taken.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.connector.frames import LENGTH_BYTES, FrameType, Message
from penstock.connector.heads import HEAD, HEAD_BYTES, LEAST_LENGTH
from penstock.errors import ProtocolError

Positions = npt.NDArray[np.int64]

_MESSAGE: Final = int(FrameType.MESSAGE)
_LENGTH_AND_TYPE: Final = struct.Struct(">IB")
_BLOCK_BYTES: Final = (
    128 * 1024
)  # searched at a time: stays in the cache, and off the page allocator
_SMALL_FRAME_BYTES: Final = 400  # below this, searching is faster than walking (measured)
_SAMPLE: Final = 16  # frames walked to learn how large they are


@dataclass(slots=True)
class Messages:
    """MESSAGE frames in a buffer, in their order. They need not be neighbours.

    The columns are read when first asked for, and point nowhere: the buffer may be reused once they are.
    """

    buffer: memoryview
    starts: Positions
    ends: Positions
    _known: dict[str, npt.NDArray[np.generic]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __len__(self) -> int:
        return len(self.starts)

    def _column(self, name: str, dtype: str) -> npt.NDArray[np.generic]:
        """One field of every head, wherever the heads lie."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = self._gathered(name, dtype)
        return found

    def _gathered(self, name: str, dtype: str) -> npt.NDArray[np.generic]:
        spec = HEAD.fields
        assert spec is not None
        if not len(self.starts):
            return np.empty(0, dtype)
        kind, at = spec[name][:2]
        found: npt.NDArray[np.generic]
        if step := self._step():
            first = int(self.starts[0])
            found = np.ndarray((len(self),), kind, self.buffer, first + at, (step,))
        else:
            span = len(self.buffer) - at - kind.itemsize + 1
            found = np.ndarray((span,), kind, self.buffer, at, (1,))[self.starts]
        return found.astype(dtype)

    def _step(self) -> int:
        """From each frame to the next, where that is the same for all; or 0."""
        n, starts = len(self.starts), self.starts
        step = int(starts[1] - starts[0]) if n > 1 else 0
        if starts[-1] - starts[0] != (n - 1) * step or (starts[1:] - starts[:-1] != step).any():
            return 0
        return step

    @property
    def stream_ids(self) -> npt.NDArray[np.uint64]:
        return self._column("stream_id", "u8")  # type: ignore[return-value]

    @property
    def message_ids(self) -> npt.NDArray[np.uint64]:
        return self._column("message_id", "u8")  # type: ignore[return-value]

    @property
    def event_times(self) -> npt.NDArray[np.int64]:
        return self._column("event_time", "i8")  # type: ignore[return-value]

    @property
    def key_lengths(self) -> Positions:
        return self._column("key_bytes", "i8")  # type: ignore[return-value]

    @property
    def payload_lengths(self) -> Positions:
        return self.ends - self.starts - HEAD_BYTES - self.key_lengths

    @property
    def size_bytes(self) -> int:
        return int((self.ends - self.starts).sum())

    def select(self, chosen: npt.NDArray[np.bool_] | Positions | slice) -> Messages:
        found = Messages(self.buffer, self.starts[chosen], self.ends[chosen])
        found._known = {name: column[chosen] for name, column in self._known.items()}
        return found

    def payloads(self) -> pa.BinaryArray:
        """An absent payload is an empty one here: the topic's column is never null."""
        return _cut(self.buffer, self.starts + HEAD_BYTES + self.key_lengths, self.ends)

    def keys(self) -> pa.BinaryArray:
        """Null where there is none."""
        lengths = self.key_lengths
        if not lengths.any():
            return pa.nulls(len(lengths), pa.binary())
        begin = self.starts + HEAD_BYTES
        found = _cut(self.buffer, begin, begin + lengths)
        there = pa.py_buffer(np.packbits(lengths > 0, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(lengths), [there, *found.buffers()[1:]])

    def frames(self) -> memoryview:
        """The frames as they came: in the buffer, if they are neighbours there."""
        if len(self) == 0:
            return memoryview(b"")
        if (self.starts[1:] == self.ends[:-1]).all():
            return self.buffer[self.starts[0] : self.ends[-1]]
        data = _cut(self.buffer, self.starts, self.ends).buffers()[2]
        return memoryview(data)[: self.size_bytes]

    def copy(self) -> Messages:
        """The same in a buffer of their own."""
        lengths = self.ends - self.starts
        ends = np.cumsum(lengths)
        return Messages(memoryview(bytes(self.frames())), ends - lengths, ends)

    def each(self) -> list[Message]:
        """One by one; for small volumes and tests."""
        columns = zip(
            self.stream_ids.tolist(),
            self.message_ids.tolist(),
            self.event_times.tolist(),
            self.keys().to_pylist(),
            self.payloads().to_pylist(),
            strict=True,
        )
        return [Message(s, m, time, key, data or None) for s, m, time, key, data in columns]


def _cut(buffer: memoryview, begins: Positions, ends: Positions) -> pa.BinaryArray:
    """The stretches `begins[i]:ends[i]`, which rise and do not overlap, copied into an array."""
    n = len(begins)
    if n == 0:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * n, np.int32)
    bounds[0::2], bounds[1::2] = begins, ends
    parts = [None, pa.py_buffer(bounds), pa.py_buffer(buffer)]
    all_of_it = pa.Array.from_buffers(pa.binary(), 2 * n - 1, parts)
    # Not pa.array: it would import pandas, which takes longer than most extensions run.
    every_other = pa.py_buffer(np.arange(0, 2 * n, 2, dtype=np.int32))
    return all_of_it.take(pa.Array.from_buffers(pa.int32(), n, [None, every_other]))


def encode_messages(
    stream_id: int,
    message_ids: npt.NDArray[np.integer],
    payloads: pa.Array,
    *,
    event_times: npt.NDArray[np.int64] | None = None,
    keys: pa.Array | None = None,
) -> memoryview:
    """MESSAGE frames of one stream, end to end. `payloads` and `keys` are binary arrays."""
    n = len(payloads)
    if n == 0:
        return memoryview(b"")
    heads = np.zeros(n, HEAD)
    payloads = _no_nulls(payloads)
    lengths = _lengths(payloads)
    parts = [payloads]
    if keys is not None and keys.null_count < n:
        keys = _no_nulls(keys)
        key_lengths = _lengths(keys)
        if int(key_lengths.max()) > 2**16 - 1:
            raise ProtocolError("a key has more bytes than fit into a frame (65535)")
        heads["key_bytes"] = key_lengths
        lengths = lengths + key_lengths
        parts.insert(0, keys)
    heads["length"] = lengths + LEAST_LENGTH
    heads["type"] = FrameType.MESSAGE
    heads["stream_id"] = stream_id
    heads["message_id"] = message_ids
    if event_times is not None:
        heads["event_time"] = event_times
    bounds = pa.py_buffer(np.arange(0, HEAD_BYTES * n + 1, HEAD_BYTES, dtype=np.int32))
    head_array = pa.Array.from_buffers(pa.binary(), n, [None, bounds, pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(head_array, *parts, pa.scalar(b""))
    size = int(lengths.sum()) + HEAD_BYTES * n
    return memoryview(joined.buffers()[2])[:size]


def _no_nulls(array: pa.Array) -> pa.Array:
    return array.fill_null(b"") if array.null_count else array


def _lengths(array: pa.Array) -> Positions:
    """Of a binary array without nulls."""
    bounds = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)
    return np.diff(bounds).astype(np.int64)


def find_messages(data: memoryview, at: int, max_frame_bytes: int) -> Messages:
    """Whole MESSAGE frames that follow each other from `at`, up to the first that is anything else:
    another type, too long, too short for what it must hold, or not all there."""
    starts, end = _walk(data, at, max_frame_bytes, _SAMPLE)
    if len(starts) < _SAMPLE:
        return _found(data, [np.array(starts, np.int64)], end)
    large = end - at > _SMALL_FRAME_BYTES * _SAMPLE
    found, end = _same_size(data, at, starts[1] - at)
    pieces = [found]
    if large:
        starts, end = _walk(data, end, max_frame_bytes, None)
        pieces.append(np.array(starts, np.int64))
    else:
        while len(found) or len(pieces) == 1:
            found, end = _search(data, end, max_frame_bytes)
            pieces.append(found)
    return _found(data, pieces, end)


def _found(data: memoryview, pieces: list[Positions], end: int) -> Messages:
    first = np.concatenate(pieces)
    ends = np.empty_like(first)
    ends[:-1] = first[1:]
    ends[-1:] = end
    return _only_sound(Messages(data, first, ends))


def _same_size(data: memoryview, at: int, size: int) -> tuple[Positions, int]:
    """Frames that follow each other from `at`, as long as they are all of this size. Records of one size
    are found at once that way."""
    count = (len(data) - at) // size
    lengths: npt.NDArray[np.uint32] = np.ndarray((count,), "=u4", data, at, (size,))
    types: npt.NDArray[np.uint8] = np.ndarray((count,), "u1", data, at + LENGTH_BYTES, (size,))
    # The number is turned round, once, and not every length.
    wanted = np.frombuffer((size - LENGTH_BYTES).to_bytes(LENGTH_BYTES, "big"), "=u4")[0]
    alike = (lengths == wanted) & (types == _MESSAGE)
    if not alike.all():
        count = int(alike.argmin())
    return at + size * np.arange(count, dtype=np.int64), at + size * count


def _walk(
    data: memoryview, at: int, max_frame_bytes: int, most: int | None
) -> tuple[list[int], int]:
    """Starts of frames, and where the last one ends."""
    found: list[int] = []
    last = len(data) - HEAD_BYTES
    unpack, add = _LENGTH_AND_TYPE.unpack_from, found.append
    while at <= last and len(found) != most:
        length, kind = unpack(data, at)
        end = at + LENGTH_BYTES + length
        if kind != _MESSAGE or not LEAST_LENGTH <= length <= max_frame_bytes or end > len(data):
            break
        add(at)
        at = end
    return found, at


def _search(data: memoryview, at: int, max_frame_bytes: int) -> tuple[Positions, int]:
    """Starts of whole frames on the chain that begins at `at`, within one block; and its end."""
    block = np.frombuffer(data, np.uint8, min(len(data) - at, _BLOCK_BYTES), at)
    if len(block) < HEAD_BYTES:
        return np.empty(0, np.int64), at
    places = np.flatnonzero(
        block[LENGTH_BYTES : len(block) - HEAD_BYTES + 1 + LENGTH_BYTES] == _MESSAGE
    )
    words: npt.NDArray[np.generic] = np.ndarray((len(block) - 3,), ">u4", data, at, (1,))
    lengths = words[places].astype(np.int64)
    following = places + lengths + LENGTH_BYTES
    # What ends past the block is left to the next one. Little that is not a frame passes this.
    sound = (lengths >= LEAST_LENGTH) & (lengths <= max_frame_bytes) & (following <= len(block))
    places, following = places[sound], following[sound]
    if not len(places) or places[0] != 0:
        return np.empty(0, np.int64), at
    places, end = _chain(places, following)
    return places + at, at + end


def _chain(places: Positions, following: Positions) -> tuple[Positions, int]:
    """The places on the chain that begins at the first, and where the last of them leads.

    Almost always every place leads to its neighbour. Where one does not, either the neighbour is no
    frame, and is jumped over, or the chain ends.
    """
    astray = np.flatnonzero(following[:-1] != places[1:])
    pieces: list[Positions] = []
    at = 0
    for stop in astray.tolist():
        if stop < at:  # it was jumped over itself
            continue
        pieces.append(places[at : stop + 1])
        led_to = int(following[stop])
        at = int(np.searchsorted(places, led_to))
        if at == len(places) or places[at] != led_to:
            return np.concatenate(pieces), led_to
    pieces.append(places[at:])
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0], int(following[-1])


def _only_sound(found: Messages) -> Messages:
    """Up to the first frame whose key would reach past its end."""
    if len(found) == 0:
        return found
    broken = np.flatnonzero(found.payload_lengths < 0)
    return found.select(slice(0, int(broken[0]))) if len(broken) else found
