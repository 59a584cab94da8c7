"""Reading a source beside the event loop: a source may wait, for its disk or because it is `Throttled`.

A thread reads it, at most `SDK_READ_AHEAD` messages ahead. It is a daemon of its own, and not one of the loop's
executor: who gives up must not wait until a source that sleeps for an hour wakes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable
from contextlib import suppress
from typing import Generic, TypeVar

from penstock.limits import SDK_READ_AHEAD

Item = TypeVar("Item")


class Ahead(Generic[Item]):
    """Go through it once, with `async for`: lists of what has come since the last one."""

    def __init__(self, source: Iterable[Item]) -> None:
        self._source = source
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._lock = threading.Lock()
        self._room = threading.Semaphore(SDK_READ_AHEAD)
        self._items: list[Item] = []
        self._error: BaseException | None = None
        self._ended = False
        self._left = False

    async def __aiter__(self) -> AsyncGenerator[list[Item]]:
        threading.Thread(target=self._read, name="penstock feed", daemon=True).start()
        try:
            while items := await self._next():
                self._room.release(len(items))
                yield items
        finally:
            self._left = True
            self._room.release()

    async def _next(self) -> list[Item]:
        """Empty at the end; raises what the source has raised, after what came before it."""
        while True:
            await self._arrived.wait()
            with self._lock:
                items, self._items = self._items, []
                if not self._ended:
                    self._arrived.clear()
            if items:
                await asyncio.sleep(0)  # a source that is always ahead leaves others their turns
                return items
            if self._error is not None:
                raise self._error
            if self._ended:
                return []

    def _read(self) -> None:
        try:
            for item in self._source:
                self._room.acquire()
                if self._left:
                    return
                self._add([item])
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._add([])

    def _add(self, items: list[Item]) -> None:
        with self._lock:
            quiet = not self._items
            self._items += items
        if quiet:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._arrived.set)
