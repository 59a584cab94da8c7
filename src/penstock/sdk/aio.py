"""`SourceExtension` for asyncio: the same methods, to be awaited. The connection lives on the running loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Self

from penstock.errors import PenstockError
from penstock.sdk.ahead import Ahead
from penstock.sdk.outbox import OutStream
from penstock.sdk.sender import Sender
from penstock.sdk.source import (
    CONNECT_TIMEOUT_S,
    LAST_WORDS_S,
    Partition,
    SourceBase,
)
from penstock.sdk.sources import ReplayableSource


class SourceExtension(SourceBase):
    """Each method says what it does in `penstock.sdk.SourceExtension`."""

    async def connect(
        self,
        host: str | None = None,
        port: int | None = None,
        timeout_s: float | None = CONNECT_TIMEOUT_S,
    ) -> Self:
        sender = self._make_sender(host, port)
        try:
            await sender.connected(timeout_s)
        except BaseException:
            await self.abort()
            raise
        return self

    async def write(
        self, message: Any, partition: Partition = None, sequence: int | None = None
    ) -> bool:
        sender = self._connected()
        stream = self._streams.get(partition) or await self._open(partition)
        fresh = self._add(stream, message, sequence)
        await self._sent_soon(sender)
        return fresh

    async def write_many(
        self,
        messages: Iterable[Any],
        partition: Partition = None,
        sequences: Sequence[int] | None = None,
    ) -> int:
        sender = self._connected()
        stream = self._streams.get(partition) or await self._open(partition)
        fresh = self._add_many(stream, messages, sequences)
        await self._sent_soon(sender)
        return fresh

    async def point_of_reference(self, partition: Partition = None) -> int | None:
        self._connected()
        stream = self._streams.get(partition) or await self._open(partition)
        return None if stream.durable < 0 else stream.durable

    async def feed(self, source: ReplayableSource, partition: Partition = None) -> int:
        """The source is read in a thread: it may wait, for its disk or because it is `Throttled`."""
        await asyncio.to_thread(source.reset, await self.point_of_reference(partition))
        written = 0
        async with contextlib.aclosing(aiter(Ahead(source))) as ahead:
            async for some in ahead:
                for number, message in some:
                    written += await self.write(message, partition, number)
        return written

    async def flush(self, timeout_s: float | None = None) -> None:
        await self._connected().settled(timeout_s)

    async def close(self, timeout_s: float | None = None) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close(timeout_s)

    async def abort(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.abort()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            await self.close()
        else:
            with contextlib.suppress(PenstockError):
                await self.close(LAST_WORDS_S)

    async def _open(self, partition: Partition) -> OutStream:
        stream = self._stream_of(partition)
        await self._connected().open(stream, None)
        self._streams[partition] = stream
        return stream

    async def _sent_soon(self, sender: Sender) -> None:
        sender.wake_soon()
        if self._full:
            await sender.until(lambda: not self._full, None, "no room")
