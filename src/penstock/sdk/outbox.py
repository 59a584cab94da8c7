"""What a source has written and Penstock has not yet acknowledged. No I/O: `sender.py` does that.

Messages of a stream wait as *packs*: frames end to end, so that many go out with one call and are forgotten
with one comparison. A pack is unsent, then sent, then acknowledged and gone; when a connection is lost, what was
sent is unsent again, and what Penstock says it has is dropped.

Writers and the sender may be different threads: what both touch is touched under the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import numpy as np

from penstock.connector.heads import LEAST_LENGTH
from penstock.errors import ProtocolError
from penstock.limits import MAX_CONNECTOR_FRAME_BYTES, SDK_PACK_BYTES
from penstock.sdk.messages import Outgoing
from penstock.sdk.packs import IdArray, Pack, check_key, make_pack, too_large

_MOST_BYTES = MAX_CONNECTOR_FRAME_BYTES - LEAST_LENGTH


class OutStream:
    """One stream of a source. `opened`: its point of reference is known, and the caller may write."""

    def __init__(self, stream_id: int, name: bytes) -> None:
        self.stream_id = stream_id
        self.name = name
        self.opened = False
        self.granted = False  # by the present connection
        self.durable = -1  # the last message id that is, as far as we know
        self.written = -1  # the last message id that was taken
        self.unsent: deque[Pack] = deque()
        self.sent: deque[Pack] = deque()
        self.building: list[bytes | Outgoing] = []
        self.building_ids: list[int] = []
        self.building_bytes = 0

    @property
    def waits(self) -> bool:
        """Whether anything is to be sent."""
        return bool(self.unsent or self.building)


class Outbox:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.streams: dict[int, OutStream] = {}
        self.waiting_bytes = 0
        self.waiting_messages = 0

    # --- The writer's side ----------------------------------------------------------------------

    def stream(self, stream_id: int, name: bytes) -> OutStream:
        with self.lock:
            found = self.streams.get(stream_id)
            if found is None:
                found = self.streams[stream_id] = OutStream(stream_id, name)
            return found

    def add(self, stream: OutStream, message: bytes | Outgoing, message_id: int | None) -> bool:
        """False if it was written before."""
        size = len(message)
        if isinstance(message, Outgoing) and message.key is not None:
            check_key(message.key)
        if size > _MOST_BYTES:
            raise too_large(size)
        with self.lock:
            number = stream.written + 1 if message_id is None else message_id
            if number <= stream.written:
                return False
            stream.building.append(message)
            stream.building_ids.append(number)
            stream.building_bytes += size
            stream.written = number
            self.waiting_bytes += size
            self.waiting_messages += 1
            if stream.building_bytes >= SDK_PACK_BYTES:
                self._seal(stream)
            return True

    def add_many(
        self, stream: OutStream, messages: Sequence[bytes | Outgoing], ids: IdArray | None
    ) -> int:
        """How many were not written before."""
        if not messages:
            return 0
        with self.lock:
            self._seal(stream)
            if ids is None:
                first = stream.written + 1
                ids = np.arange(first, first + len(messages), dtype=np.uint64)
            fresh = make_pack(stream.stream_id, ids, messages).after(stream.written)
            if fresh is None:
                return 0
            stream.written = fresh.last
            stream.unsent.append(fresh)
            self.waiting_bytes += fresh.size_bytes
            self.waiting_messages += len(fresh)
            return len(fresh)

    def _seal(self, stream: OutStream) -> None:
        if not stream.building:
            return
        messages, ids = stream.building, stream.building_ids
        stream.building, stream.building_ids = [], []
        pack = make_pack(stream.stream_id, np.array(ids, np.uint64), messages)
        self.waiting_bytes += pack.size_bytes - stream.building_bytes
        stream.building_bytes = 0
        stream.unsent.append(pack)

    # --- The sender's side ----------------------------------------------------------------------

    def next_pack(self, stream: OutStream, credits: int) -> Pack | None:
        """What goes out next, of no more frames than that; it counts as sent from then on."""
        with self.lock:
            if not stream.unsent:
                self._seal(stream)
            if not stream.unsent:
                return None
            pack = stream.unsent.popleft()
            if len(pack) > credits:
                pack, rest = pack.cut(credits)
                stream.unsent.appendleft(rest)
            stream.sent.append(pack)
            return pack

    def acknowledged(self, stream: OutStream, reference: int) -> None:
        with self.lock:
            stream.durable = max(stream.durable, reference)
            while stream.sent and stream.sent[0].last <= reference:
                self._gone(stream.sent.popleft())

    def _gone(self, pack: Pack) -> None:
        self.waiting_bytes -= pack.size_bytes
        self.waiting_messages -= len(pack)

    def lost(self) -> None:
        """The connection has gone: nobody knows what of the sent arrived."""
        with self.lock:
            for stream in self.streams.values():
                stream.granted = False
                stream.unsent.extendleft(reversed(stream.sent))
                stream.sent.clear()

    def moved(self) -> None:
        """The next connection goes elsewhere, where nobody need know what was acknowledged here."""
        with self.lock:
            for stream in self.streams.values():
                stream.durable = -1

    def resumed(self, stream: OutStream, reference: int) -> None:
        """The stream is ours; Penstock has everything up to the reference (-1: nothing).

        ProtocolError if that cannot be: something else writes to the stream, or Penstock has lost what
        it had acknowledged.
        """
        with self.lock:
            if stream.opened:
                self._check(stream, reference)
                while stream.unsent and stream.unsent[0].last <= reference:
                    self._gone(stream.unsent.popleft())
                if stream.unsent and stream.unsent[0].ids[0] <= reference:
                    first = stream.unsent.popleft()
                    rest = first.after(reference)
                    assert rest is not None
                    self.waiting_bytes -= first.size_bytes - rest.size_bytes
                    self.waiting_messages -= len(first) - len(rest)
                    stream.unsent.appendleft(rest)
            else:
                stream.written = reference
            stream.durable = reference
            stream.opened = stream.granted = True

    def _check(self, stream: OutStream, reference: int) -> None:
        who = f"stream {stream.stream_id}"
        if reference > stream.written:
            raise ProtocolError(
                f"{who} is at message {reference}, and this program wrote {stream.written} at last: "
                "another program writes to it; give each a partition of its own"
            )
        if reference < stream.durable:
            raise ProtocolError(
                f"{who} is back at message {reference}, and {stream.durable} was acknowledged: start the "
                "program again from its source"
            )
