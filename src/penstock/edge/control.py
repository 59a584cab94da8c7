"""What the supervisor and an edge process say to each other, and how: frames over a socket pair.

A frame is a 4-byte big-endian length and that many bytes of JSON: an object with a `type`.

    supervisor → worker                      worker → supervisor
    {"type": "plan", "plan": EdgePlan}       {"type": "recovering"}
    {"type": "stats", "n": K}                {"type": "ready", "addresses": {receiver: "host:port"}}
    {"type": "stop"}                         {"type": "failed", "error": text}, then it exits with 1
    {"type": "settled", "frontiers": …,      {"type": "stats", "n": K, "data": WorkerStats}
     "exceptions": bool}                     {"type": "settled", …} (the engine's process only)
    {"type": "announced"} (to the engine)

The plan comes first and once. The end of the stream means that the other side is gone: a worker
then stops by itself, as if told to, so that a killed supervisor leaves nothing running.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any, NotRequired, TypedDict

import orjson

from penstock.errors import Unavailable
from penstock.limits import CONTROL_FRAME_BYTES

_LENGTH_BYTES = 4


PeerStats = TypedDict(
    "PeerStats",
    {
        "in": int,
        "out": int,
        "err": int,
        "send": int,
        "recv": int,
        "recv_bytes": int,
        "connections": int,
        "refused": int,
    },
)
"""All but `connections` (those open now) only rise while the process lives."""


class PartitionStats(TypedDict):
    """`end` is the next offset; `pending_*` is accepted, not yet durable; the rest only rises."""

    end: int
    pending_messages: int
    pending_bytes: int
    bytes_written: int
    commits: int
    fsync_seconds_sum: float
    fsync_buckets: list[tuple[float | None, int]]
    """(upper bound in seconds, commits at most that slow and slower than the bound before).

    Not cumulative. The last bound is None: no upper bound.
    """


class SinkStats(TypedDict):
    """`valve` is open, held, half-open or closed; `parked` messages wait for it; `error` is its last."""

    valve: str
    parked: int
    error: str | None


class PieceStats(TypedDict):
    transactions: int
    last_batch_s: float
    statuses: dict[str, int]  # of messages that did not end in done


class EngineStats(TypedDict):
    """`lag`: messages that are durable and not settled yet. `done`: those that ended well since the process
    began, as near as it can tell without a look at each."""

    lag: int
    done: int
    sinks: dict[str, SinkStats]
    pieces: dict[str, PieceStats]


class WorkerStats(TypedDict):
    peers: dict[str, PeerStats]
    partitions: dict[str, PartitionStats]  # by "topic/partition"
    rss_bytes: int
    engine: NotRequired[EngineStats]  # from the engine's process only


def encode_frame(message: dict[str, Any]) -> bytes:
    body = orjson.dumps(message)
    if len(body) > CONTROL_FRAME_BYTES:
        raise ValueError(
            f"a control frame of {len(body)} bytes; the limit is {CONTROL_FRAME_BYTES}"
        )
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


class Control:
    """One end of the socket pair. `send` never blocks, and drops what nobody is left to read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> Control:
        """Takes the socket over: it is closed with this object."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, message: dict[str, Any]) -> None:
        """Queue a frame. If the other side is gone it is dropped: `receive` tells of the end."""
        if not self._writer.is_closing():
            self._writer.write(encode_frame(message))

    async def receive(self) -> dict[str, Any] | None:
        """The next frame, or None when the other side has closed or died."""
        try:
            length = int.from_bytes(await self._reader.readexactly(_LENGTH_BYTES), "big")
            if length > CONTROL_FRAME_BYTES:
                raise Unavailable(f"control socket: a frame of {length} bytes is over the limit")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise Unavailable(f"control socket: a frame is not JSON ({error})") from error
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise Unavailable("control socket: a frame is not an object with a type")
        return message

    async def flush(self) -> None:
        """Wait until what was sent is on its way, or the other side is gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        self._writer.close()
