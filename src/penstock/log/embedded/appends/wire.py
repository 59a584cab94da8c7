"""What appenders and the owner of a partition say to each other, without I/O.

    frame     4 x magic "PAP1", u32 bytes of the body, u8 kind, 3 x -, u64 number of the request
    body      u32 bytes of JSON, JSON, data

    kind          JSON                                              data
    1 batches     topic, partition, batches: [[peer, stream, seq,   of each batch: u32 payload lengths,
                  time_us, meta, messages, payload bytes, keys]]    i32 key lengths (-1: none), payloads, keys
    2 rows        topic, partition, producer, number, first, last   an Arrow IPC stream of one record batch
    3 answer      results: [[offset, count, repeats] |              -
                  [name of the error, its text]]
    4 refused     reason: what of the other side's frames was       -
                  wrong; the connection ends

All integers are little-endian. Requests are answered once what they bring is durable, or refused; answers may
overtake each other. Everything that is decoded is checked: nothing malformed reaches the log.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from penstock import errors
from penstock.errors import InvalidMessage, LogError, PenstockError
from penstock.limits import (
    MAX_APPEND_BATCHES,
    MAX_APPEND_FRAME_BYTES,
    MAX_KEY_BYTES,
    MAX_META_BYTES,
    MAX_STREAM_NAME_BYTES,
)
from penstock.log.embedded.rows import RowsPart, check_number, checked
from penstock.log.interface import Appended
from penstock.message import NO_META, Batch, Buffer

BATCHES, ROWS, ANSWER, REFUSED = 1, 2, 3, 4
_FRAME = struct.Struct("<4sIB3xQ")
_MAGIC = b"PAP1"
_U32 = struct.Struct("<I")
_MAX_SEQ = 2**63 - 1
_MAX_NAME_BYTES = 4 * MAX_STREAM_NAME_BYTES  # an Idempotency-Key is counted in characters

Result = Appended | PenstockError


@dataclass(frozen=True, slots=True)
class Frame:
    kind: int
    number: int
    body: memoryview


class Frames:
    """Bytes in, frames out. Raises InvalidMessage; after that the connection is of no more use."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: Buffer) -> list[Frame]:
        self._buffer += data
        found: list[Frame] = []
        whole, at = memoryview(self._buffer), 0
        while len(whole) - at >= _FRAME.size:
            magic, size, kind, number = _FRAME.unpack_from(whole, at)
            if magic != _MAGIC:
                raise InvalidMessage("this is not a frame of the append protocol")
            if size > MAX_APPEND_FRAME_BYTES:
                raise InvalidMessage(
                    f"a frame has at most {MAX_APPEND_FRAME_BYTES} bytes, not {size}"
                )
            end = at + _FRAME.size + size
            if end > len(whole):
                break
            found.append(Frame(kind, number, whole[at + _FRAME.size : end]))
            at = end
        if found:  # this buffer is theirs now
            self._buffer = bytearray(whole[at:])
        else:
            whole.release()
        return found


def _frame(kind: int, number: int, head: dict[str, Any], data: Sequence[Buffer]) -> list[Buffer]:
    json = orjson.dumps(head)
    size = _U32.size + len(json) + sum(map(len, data))
    if size > MAX_APPEND_FRAME_BYTES:
        raise LogError(f"an append of {size} bytes is over the limit of {MAX_APPEND_FRAME_BYTES}")
    return [_FRAME.pack(_MAGIC, size, kind, number) + _U32.pack(len(json)) + json, *data]


def _body(body: memoryview) -> tuple[Any, memoryview]:
    try:
        end = _U32.size + _U32.unpack_from(body)[0]
        if end > len(body):
            raise InvalidMessage("the frame's head is longer than the frame")
        return orjson.loads(body[_U32.size : end]), body[end:]
    except (struct.error, orjson.JSONDecodeError) as error:
        raise InvalidMessage(f"the frame's head cannot be read: {error}") from None


# --- Batches ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BatchesRequest:
    topic: str
    partition: int
    batches: list[Batch]


def batch_bytes(batch: Batch) -> int:
    """No fewer bytes than this batch takes in a frame."""
    keys = 0 if batch.keys is None else sum(len(key or b"") for key in batch.keys)
    names = 6 * (len(batch.peer) + len(batch.stream))
    return len(batch.payload) + 8 * batch.count + keys + names + 6 * len(batch.meta) + 128


def encode_batches(
    number: int, topic: str, partition: int, batches: Sequence[Batch]
) -> list[Buffer]:
    heads, data = [], list[Buffer]()
    for batch in batches:
        sizes = batch.lengths
        data.append(
            _U32.pack(len(batch.payload))
            if sizes is None
            else sizes.astype("<u4", copy=False).tobytes()
        )
        keys = b""
        if batch.keys is not None:
            lengths = (-1 if key is None else len(key) for key in batch.keys)
            data.append(struct.pack(f"<{batch.count}i", *lengths))
            keys = b"".join(key for key in batch.keys if key is not None)
        data += [batch.payload, keys]
        heads.append(
            [
                batch.peer,
                batch.stream,
                batch.seq,
                batch.time_us,
                bytes(batch.meta).decode(),
                batch.count,
                len(batch.payload),
                None if batch.keys is None else len(keys),
            ]
        )
    head = {"topic": topic, "partition": partition, "batches": heads}
    return _frame(BATCHES, number, head, data)


def decode_batches(body: memoryview) -> BatchesRequest:
    head, data = _body(body)
    try:
        topic, partition, heads = head["topic"], head["partition"], head["batches"]
        if not isinstance(topic, str) or type(partition) is not int:
            raise InvalidMessage("the topic or the partition cannot be read")
        if not 0 < len(heads) <= MAX_APPEND_BATCHES:
            raise InvalidMessage(f"a request has 1 to {MAX_APPEND_BATCHES} batches")
        batches = []
        for described in heads:
            batch, data = _batch(described, data)
            batches.append(batch)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidMessage(f"the batches cannot be read: {error}") from None
    if len(data):
        raise InvalidMessage("the frame is longer than its batches")
    return BatchesRequest(topic, partition, batches)


def _batch(described: list[Any], data: memoryview) -> tuple[Batch, memoryview]:
    peer, stream, seq, time_us, meta, count, payload_bytes, key_bytes = described
    numbers = (seq, time_us, count, payload_bytes, 0 if key_bytes is None else key_bytes)
    if not all(type(number) is int for number in numbers):
        raise InvalidMessage("a batch's numbers cannot be read")
    if not (0 < count <= len(data) // 4 and 0 <= seq <= _MAX_SEQ - count):
        raise InvalidMessage("a batch has no messages, or no numbers left for them")
    if not -_MAX_SEQ <= time_us <= _MAX_SEQ:
        raise InvalidMessage("a batch's time cannot be stored")
    _check_name(peer)
    _check_name(stream)
    sizes, data = _take(data, 4 * count)
    lengths = np.frombuffer(sizes, "<u4")
    keys: list[bytes | None] | None = None
    key_sizes: np.ndarray | None = None
    if key_bytes is not None:
        sizes, data = _take(data, 4 * count)
        key_sizes = np.frombuffer(sizes, "<i4")
    payload, data = _take(data, payload_bytes)
    if int(lengths.sum(dtype=np.uint64)) != payload_bytes:
        raise InvalidMessage("a batch's payloads are not as long as their lengths say")
    if key_sizes is not None:
        blob, data = _take(data, key_bytes)
        keys = _keys(key_sizes, blob)
    encoded = _check_meta(meta)
    return Batch(
        peer, stream, seq, payload, lengths, meta=encoded, keys=keys, time_us=time_us
    ), data


def _take(data: memoryview, size: int) -> tuple[memoryview, memoryview]:
    if not 0 <= size <= len(data):
        raise InvalidMessage("a batch is longer than its frame")
    return data[:size], data[size:]


def _keys(sizes: np.ndarray, blob: memoryview) -> list[bytes | None]:
    ends = np.cumsum(np.maximum(sizes, 0), dtype=np.int64)
    if int(ends[-1]) != len(blob) or int(sizes.min()) < -1 or int(sizes.max()) > MAX_KEY_BYTES:
        raise InvalidMessage("a batch's keys are not as long as their lengths say, or too long")
    return [
        None if size < 0 else bytes(blob[end - size : end])
        for size, end in zip(sizes.tolist(), ends.tolist(), strict=True)
    ]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name.encode()) <= _MAX_NAME_BYTES:
        raise InvalidMessage("a batch's peer or stream is not a name")


def _check_meta(meta: object) -> bytes:
    if not isinstance(meta, str):
        raise InvalidMessage("a batch's meta cannot be read")
    if meta == "{}":
        return NO_META
    encoded = meta.encode()
    found = orjson.loads(encoded) if len(encoded) <= MAX_META_BYTES else None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise InvalidMessage(f"meta is a JSON object of strings of at most {MAX_META_BYTES} bytes")
    return encoded


# --- Rows -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowsRequest:
    topic: str
    partition: int
    part: RowsPart


def encode_rows(number: int, topic: str, partition: int, part: RowsPart) -> list[Buffer]:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, part.rows.schema) as stream:
        stream.write_batch(part.rows)
    head = {
        "topic": topic,
        "partition": partition,
        "producer": part.producer,
        "number": part.number,
        "first": part.first,
        "last": part.last,
    }
    return _frame(ROWS, number, head, [memoryview(sink.getvalue())])


def decode_rows(body: memoryview) -> RowsRequest:
    head, data = _body(body)
    try:
        topic, partition = head["topic"], head["partition"]
        producer, number = head["producer"], head["number"]
        first, last = head["first"], head["last"]
    except (KeyError, TypeError) as error:
        raise InvalidMessage(f"the head of the rows lacks {error}") from None
    wanted = ((topic, str), (partition, int), (producer, str), (number, int), (first, int))
    if (
        any(type(value) is not kind for value, kind in wanted)
        or type(last) is not bool
        or first < 0
    ):
        raise InvalidMessage("the head of the rows cannot be read")
    try:
        check_number(producer, number)
        with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
            rows = stream.read_next_batch()
        rows.validate(full=True)
        if rows.num_rows == 0:
            raise InvalidMessage("there are no rows")
        stored = checked(rows)
    except (pa.ArrowException, LogError, StopIteration, OSError, ValueError) as error:
        raise InvalidMessage(f"the rows cannot be stored: {error}") from None
    return RowsRequest(
        topic, partition, RowsPart(stored, producer, number, first, last, stored.nbytes)
    )


# --- Answers ----------------------------------------------------------------------------------------


def encode_answer(number: int, results: Sequence[Result]) -> bytes:
    described = [
        [one.offset, one.count, one.repeats]
        if isinstance(one, Appended)
        else [type(one).__name__, str(one)]
        for one in results
    ]
    return b"".join(_frame(ANSWER, number, {"results": described}, ()))


def decode_answer(body: memoryview) -> list[Result]:
    head, _ = _body(body)
    try:
        return [
            Appended(*one) if len(one) == 3 else _error(one[0], one[1]) for one in head["results"]
        ]
    except (KeyError, TypeError, IndexError) as error:
        raise InvalidMessage(f"the answer cannot be read: {error}") from None


def _error(name: str, text: str) -> PenstockError:
    found = getattr(errors, name, None)
    if isinstance(found, type) and issubclass(found, PenstockError):
        if found is errors.CorruptBatch:  # it takes more than a text
            return LogError(text)
        return found(text)
    return LogError(text)


def encode_refusal(reason: str) -> bytes:
    return b"".join(_frame(REFUSED, 0, {"reason": reason[:1000]}, ()))


def decode_refusal(body: memoryview) -> str:
    head, _ = _body(body)
    return str(head.get("reason")) if isinstance(head, dict) else "unknown"
