"""What moves through Penstock: messages, and the batches that carry them without touching each.

A message is a payload (bytes), meta (text to text), an optional key, a time and an event id: the
peer that took it in, the stream it came on, and its sequence number in that stream.

On the hot paths nothing handles a single message. A `Batch` is a run of messages of **one** stream,
as they were cut from one read of a socket: one blob of payloads, one array of lengths, one meta for
all of them, and sequence numbers that rise by one. A POST with one message is a batch of one.

Streams come in three kinds, told apart by name:

- `~...` was made up by the edge for a connection, and says when that began. It never comes back, so
  nothing is remembered of it.
- `key:...` stands for one `Idempotency-Key`; its only message has the sequence number 0.
- any other name was chosen by the sender, who numbers its messages: the log drops repeats.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import orjson
from xxhash import xxh3_64_intdigest

from penstock.errors import InvalidMessage
from penstock.limits import MAX_META_BYTES, MAX_STREAM_NAME_BYTES

Buffer: TypeAlias = bytes | bytearray | memoryview
Lengths: TypeAlias = npt.NDArray[np.uint32]

CONNECTION_STREAM = "~"
KEY_STREAM = "key:"
NO_META = b"{}"
BATCH_BYTES = 1024
"""What a batch takes beside its content: its objects, the array of lengths, and who waits for it. Some 800
bytes were measured; without this, a sender of empty messages could fill the memory."""
MESSAGE_BYTES = 8
"""What a message of a batch takes beside its payload: its length, as it waits and in a frame."""
KEY_BYTES = 48
"""A key's object, and its place in the list."""
OWN_META = "penstock."
"""Meta whose names begin so is Penstock's own: no sender may set it, and no sink sees it."""


@dataclass(frozen=True, slots=True)
class EventId:
    """Names a message for ever: it never changes on the way through, nor across a restart."""

    peer: str
    stream: str
    seq: int

    def __str__(self) -> str:
        return f"{self.peer}/{self.stream}/{self.seq}"

    @classmethod
    def parse(cls, text: str) -> EventId:
        peer, _, rest = text.partition("/")
        stream, slash, seq = rest.rpartition("/")
        if not (peer and stream and slash and seq.isascii() and seq.isdigit() and len(seq) < 20):
            raise InvalidMessage(f"not an event id (peer/stream/sequence): {text[:100]!r}")
        return cls(peer, stream, int(seq))


class Source:
    """A peer and one of its streams: where messages come from, and half of their event ids.

    `name` is the pair as JSON, made once, for whoever writes it again and again.
    """

    __slots__ = ("name", "peer", "stream")

    def __init__(self, peer: str, stream: str) -> None:
        self.peer = peer
        self.stream = stream
        self.name: bytes = orjson.dumps((peer, stream))


class Batch:
    """Messages of one stream, in order, as columns.

    `payload` holds all payloads end to end; `lengths` says where to cut, or is None for a single
    message. `meta` is a JSON object of strings, encoded once (see `encode_meta`). `keys` is None,
    or one optional key a message. The caller must not change the buffer before the batch is durable.
    """

    __slots__ = ("count", "keys", "lengths", "meta", "payload", "peer", "seq", "stream", "time_us")

    def __init__(
        self,
        peer: str,
        stream: str,
        seq: int,
        payload: Buffer,
        lengths: Lengths | None = None,
        *,
        meta: bytes = NO_META,
        keys: list[bytes | None] | None = None,
        time_us: int | None = None,
    ) -> None:
        self.peer = peer
        self.stream = stream
        self.seq = seq
        self.payload = payload
        self.lengths = lengths
        self.count = 1 if lengths is None else len(lengths)
        self.meta = meta
        self.keys = keys
        self.time_us = time.time_ns() // 1000 if time_us is None else time_us

    @property
    def numbered(self) -> bool:
        """Whether the log must drop repeats of this stream's sequence numbers."""
        return not self.stream.startswith(CONNECTION_STREAM)

    @property
    def held_bytes(self) -> int:
        """Memory that it takes while it waits for the disk. Always the same: what is counted when it
        is queued is subtracted when it is settled."""
        size = len(self.payload) + len(self.meta) + len(self.peer) + len(self.stream) + BATCH_BYTES
        if self.keys is not None:
            size += sum(map(len, filter(None, self.keys))) + KEY_BYTES * self.count
        return size + MESSAGE_BYTES * self.count

    def tail(self, skip: int) -> Batch:
        """The same batch without its first `skip` messages."""
        assert self.lengths is not None
        assert 0 < skip < self.count
        cut = int(self.lengths[:skip].sum(dtype=np.uint64))
        return Batch(
            self.peer,
            self.stream,
            self.seq + skip,
            memoryview(self.payload)[cut:],
            self.lengths[skip:],
            meta=self.meta,
            keys=None if self.keys is None else self.keys[skip:],
            time_us=self.time_us,
        )

    @classmethod
    def of(
        cls,
        peer: str,
        stream: str,
        seq: int,
        payloads: list[bytes],
        *,
        meta: Mapping[str, str] | None = None,
        keys: list[bytes | None] | None = None,
        time_us: int | None = None,
    ) -> Batch:
        """From separate payloads; for tests, tools and small volumes."""
        return cls(
            peer,
            stream,
            seq,
            b"".join(payloads),
            np.fromiter(map(len, payloads), np.uint32, len(payloads)),
            meta=encode_meta(meta or {}),
            keys=keys,
            time_us=time_us,
        )


def encode_meta(meta: Mapping[str, str]) -> bytes:
    """Meta as it is stored. The same meta gives the same bytes only if its order is the same."""
    if not meta:
        return NO_META
    encoded = orjson.dumps(dict(meta))
    if len(encoded) > MAX_META_BYTES:
        raise InvalidMessage(f"meta takes {len(encoded)} bytes; the limit is {MAX_META_BYTES}")
    return encoded


def connection_stream() -> str:
    """A new name for a stream that begins now: `~`, the second in hexadecimal, and chance.

    The second is there so that a message can be found by its id: it was stored at that time or later.
    """
    return f"{CONNECTION_STREAM}{int(time.time()):08x}{secrets.token_hex(6)}"


def began_s(stream: str) -> int | None:
    """When a stream of `connection_stream` began, by the clock; None for another's name."""
    digits = stream[1:9]
    if not stream.startswith(CONNECTION_STREAM) or len(stream) != 21:
        return None
    try:
        return int(digits, 16)
    except ValueError:
        return None


def home_partition(peer: str, stream: str, homes: int) -> int:
    """Where a stream that its sender named always goes: that partition remembers its numbers. `homes` is
    the topic's (`Log.homes`), and not the number of its partitions, which may have grown."""
    return xxh3_64_intdigest(f"{peer}/{stream}".encode()) % homes


def check_sender_stream(name: str) -> str:
    """A stream name that a sender may choose, or an error that says why not."""
    if not name or len(name.encode()) > MAX_STREAM_NAME_BYTES or not name.isprintable():
        raise InvalidMessage(
            f"a stream name has 1 to {MAX_STREAM_NAME_BYTES} printable bytes: {name[:40]!r}"
        )
    if name.startswith((CONNECTION_STREAM, KEY_STREAM)):
        raise InvalidMessage(f"a stream name must not begin with ~ or key: ({name[:40]!r})")
    return name
