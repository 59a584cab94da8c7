"""A body cut into messages, as batches ready to be stored. No I/O.

All or nothing: if any part of a body is wrong, nothing of it is taken.

A body of many messages is one batch as long as it fits into one frame of the log; a CloudEvents batch is
one batch for each event, since each has meta and an identity of its own.
"""

from __future__ import annotations

import numpy as np

from penstock.edge.http.head import Refused
from penstock.edge.http.request import Post
from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors.chain import Chain
from penstock.interceptors.delimited import cut_lines
from penstock.interceptors.interface import Payloads
from penstock.interceptors.prefixed import cut_length_prefixed
from penstock.limits import MAX_BATCH_EVENTS, MAX_FRAME_BYTES, MAX_META_BYTES
from penstock.message import KEY_STREAM, Batch, encode_meta
from penstock.peers import cloudevents

_FRAME_ROOM = MAX_FRAME_BYTES - 2 * MAX_META_BYTES
"""What a frame has for payloads and their lengths, whatever meta and names come with them."""
_LENGTH_BYTES = 4


class Cutter:
    """Cuts the bodies of one receiver."""

    def __init__(self, peer: str, chain: Chain, max_message_bytes: int) -> None:
        self._peer = peer
        self._chain = chain
        self.plain = chain.is_identity
        self.longest = min(max_message_bytes, _FRAME_ROOM - _LENGTH_BYTES)

    def cut(self, post: Post, body: bytes, stream: str, seq: int) -> list[Batch]:
        """`stream` and `seq` are for messages to which the sender gave none."""
        if post.stream is not None:
            stream, seq = post.stream, post.seq
        try:
            if self.plain and post.framing == "one":
                self._check_length(len(body))
                return [Batch(self._peer, stream, seq, body, meta=post.encoded_meta)]
            payloads = Payloads(body) if self.plain else self._chain.feed(body)
            if post.framing in ("event", "events"):
                return self._events(post, payloads, seq)
            return self._messages(post, self._framed(post, payloads), stream, seq)
        except TooLarge as error:
            raise Refused(413, str(error)) from None
        except InvalidMessage as error:
            raise Refused(400, str(error)) from None

    def _framed(self, post: Post, payloads: Payloads) -> Payloads:
        # Interceptors that cut have had their say.
        if post.framing == "one" or self._chain.cuts:
            return payloads
        body = bytes(payloads.blob)
        if post.framing == "lines":
            return cut_lines(body, keep_empty=False, max_length=self.longest)
        return cut_length_prefixed(body, max_length=self.longest)

    def _messages(self, post: Post, payloads: Payloads, stream: str, seq: int) -> list[Batch]:
        lengths = payloads.lengths
        if lengths is None:
            self._check_length(len(payloads.blob))
        elif len(lengths) == 0:
            raise Refused(400, "there is no message in this body")
        elif len(lengths) > MAX_BATCH_EVENTS:
            raise Refused(413, f"a body has at most {MAX_BATCH_EVENTS} messages")
        else:
            self._check_length(int(lengths.max()))
        if post.single and payloads.count > 1:
            raise Refused(400, f"{payloads.count} messages in a body that has a name for one")
        whole = Batch(self._peer, stream, seq, payloads.blob, lengths, meta=post.encoded_meta)
        return _fitting(whole)

    def _events(self, post: Post, payloads: Payloads, seq: int) -> list[Batch]:
        if payloads.count != 1:
            raise InvalidMessage(
                "this receiver's interceptors cut the body; an event needs it whole"
            )
        if post.framing == "event":
            found = [cloudevents.structured(payloads.blob)]
        else:
            found = cloudevents.batch(payloads.blob)
        batches = []
        for number, (payload, attributes) in enumerate(found):
            self._check_length(len(payload))
            meta = encode_meta({**post.meta, **attributes})
            if post.stream is None:
                name, at = KEY_STREAM + cloudevents.idempotency_key(attributes), 0
            else:
                name, at = post.stream, seq + number
            batches.append(Batch(self._peer, name, at, payload, meta=meta))
        return batches

    def _check_length(self, length: int) -> None:
        if length > self.longest:
            raise TooLarge(f"a message has at most {self.longest} bytes; this one has {length}")


def _fitting(batch: Batch) -> list[Batch]:
    """The same messages, in as few batches as frames can hold."""
    if batch.lengths is None or len(batch.payload) + _LENGTH_BYTES * batch.count <= _FRAME_ROOM:
        return [batch]
    ends = np.cumsum(batch.lengths, dtype=np.int64)
    costs = ends + _LENGTH_BYTES * np.arange(1, batch.count + 1)
    view = memoryview(batch.payload)
    fitting = []
    first = begin = spent = 0
    while first < batch.count:
        last = int(np.searchsorted(costs, spent + _FRAME_ROOM, side="right"))
        end = int(ends[last - 1])
        fitting.append(
            Batch(
                batch.peer,
                batch.stream,
                batch.seq + first,
                view[begin:end],
                batch.lengths[first:last],
                meta=batch.meta,
                time_us=batch.time_us,
            )
        )
        first, begin, spent = last, end, int(costs[last - 1])
    return fitting
