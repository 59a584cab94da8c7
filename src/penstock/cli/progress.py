"""A progress bar on a terminal; nothing anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Protocol, Self


class Progress(Protocol):
    def advance(self, messages: int, size_bytes: int) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class _Silent:
    def advance(self, messages: int, size_bytes: int) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class _Bar:
    """Messages, bytes and the rate, on stderr."""

    def __init__(self, description: str, total_bytes: int | None) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._progress = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[messages]:,} messages"),
            DownloadColumn(binary_units=True),
            TextColumn("{task.fields[rate]:,.0f}/s"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self._task = self._progress.add_task(
            escape(description), total=total_bytes, messages=0, rate=0.0
        )
        self._messages = 0
        self._started = time.monotonic()

    def advance(self, messages: int, size_bytes: int) -> None:
        self._messages += messages
        elapsed_s = max(time.monotonic() - self._started, 1e-6)
        self._progress.update(
            self._task,
            advance=size_bytes,
            messages=self._messages,
            rate=self._messages / elapsed_s,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()


def open_progress(description: str, total_bytes: int | None) -> Progress:
    return _Bar(description, total_bytes) if sys.stderr.isatty() else _Silent()
