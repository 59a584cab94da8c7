"""Many MESSAGE frames end to end, made without Arrow: a source need not have it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.connector.frames import MAX_SHORT_BYTES, FrameType
from penstock.connector.heads import HEAD, HEAD_BYTES, LEAST_LENGTH
from penstock.errors import InvalidMessage, TooLarge
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES
from penstock.sdk.messages import Outgoing

IdArray = npt.NDArray[np.uint64]
Positions = npt.NDArray[np.int64]

MAX_MESSAGE_ID = 2**63 - 1

_SMALL_BYTES = 1024
"""Payloads of one size up to this are woven faster as a table (measured)."""


@dataclass(slots=True)
class Pack:
    """MESSAGE frames of one stream, their ids rising."""

    frames: memoryview
    ends: Positions  # where each frame ends
    ids: IdArray

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def size_bytes(self) -> int:
        return len(self.frames)

    @property
    def last(self) -> int:
        return int(self.ids[-1])

    def cut(self, count: int) -> tuple[Pack, Pack]:
        """The first frames, and the rest. Copies nothing."""
        at = int(self.ends[count - 1])
        return (
            Pack(self.frames[:at], self.ends[:count], self.ids[:count]),
            Pack(self.frames[at:], self.ends[count:] - at, self.ids[count:]),
        )

    def after(self, message_id: int) -> Pack | None:
        """Only what comes after it (-1: all)."""
        if message_id < 0 or self.ids[0] > message_id:
            return self
        skip = int(np.searchsorted(self.ids, np.uint64(message_id), side="right"))
        return None if skip == len(self) else self.cut(skip)[1]


def id_array(ids: Sequence[int] | npt.NDArray[np.integer]) -> IdArray:
    """Message ids, which must rise. InvalidMessage if they do not."""
    found = np.asarray(ids)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise InvalidMessage("sequence numbers are whole numbers")
    if len(found) and (int(found.min()) < 0 or int(found.max()) > MAX_MESSAGE_ID):
        raise InvalidMessage(f"a sequence number is 0 to {MAX_MESSAGE_ID}")
    if not (found[1:] > found[:-1]).all():
        raise InvalidMessage("sequence numbers must rise within a partition")
    return found.astype(np.uint64)


def make_pack(stream_id: int, ids: IdArray, messages: Sequence[bytes | Outgoing]) -> Pack:
    heads = np.zeros(len(ids), HEAD)
    heads["type"] = FrameType.MESSAGE
    heads["stream_id"] = stream_id
    heads["message_id"] = ids
    columns: list[Sequence[bytes]] = []
    if set(map(type, messages)) <= {bytes}:
        columns = [messages]  # type: ignore[list-item]
    else:
        whole = [one if isinstance(one, Outgoing) else Outgoing(one) for one in messages]
        heads["event_time"] = [one.event_time for one in whole]
        keys = [one.key or b"" for one in whole]
        heads["key_bytes"] = list(map(check_key, keys))
        columns = [keys, [one.payload for one in whole]]
    lengths: Positions = np.zeros(len(ids), np.int64)
    for column in columns:
        lengths += np.fromiter(map(len, column), np.int64, len(ids))
    if int(lengths.max()) + LEAST_LENGTH > MAX_CONNECTOR_FRAME_BYTES:
        raise too_large(int(lengths.max()))
    heads["length"] = lengths + LEAST_LENGTH
    return Pack(_woven(heads, columns, lengths), np.cumsum(lengths + HEAD_BYTES), ids)


def _woven(
    heads: npt.NDArray[np.void], columns: list[Sequence[bytes]], lengths: Positions
) -> memoryview:
    """Each head, and what follows it."""
    size = int(lengths[0])
    if len(columns) == 1 and 0 < size <= _SMALL_BYTES and (lengths == size).all():
        frames = np.empty((len(heads), HEAD_BYTES + size), np.uint8)
        frames[:, :HEAD_BYTES] = heads.view(np.uint8).reshape(-1, HEAD_BYTES)
        frames[:, HEAD_BYTES:] = np.frombuffer(b"".join(columns[0]), np.uint8).reshape(-1, size)
        return frames.reshape(-1).data
    width = 1 + len(columns)
    parts: list[bytes] = [b""] * (width * len(heads))
    parts[::width] = heads.view(f"V{HEAD_BYTES}").tolist()
    for index, column in enumerate(columns, 1):
        parts[index::width] = column
    return memoryview(b"".join(parts))


def check_key(key: bytes) -> int:
    if len(key) > MAX_SHORT_BYTES:
        raise InvalidMessage(f"a key of {len(key)} bytes; {MAX_SHORT_BYTES} fit into a frame")
    return len(key)


def too_large(size_bytes: int) -> TooLarge:
    return TooLarge(
        f"a message of {size_bytes} bytes; {MAX_CONNECTOR_FRAME_BYTES} fit into a frame"
    )
