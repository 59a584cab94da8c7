"""What `penstock run` shows on a terminal: one screen of rates, lag, sinks and the latest log lines.

In a pipe there is no view, only log lines. With the view, the log lines of all processes go to a file in
the data directory; the last of them are on the screen.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.cli.logfile import bound
from penstock.cli.output import console, printable
from penstock.supervisor.overview import Overview
from penstock.supervisor.totals import PeerTotals, Snapshot

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_REFRESH_S = 1.0
_LOG_LINES = 8
_LOG_TAIL_BYTES = 16 * 1024


class View:
    """Use `show` as a task; cancel it to end."""

    def __init__(self, overview: Overview, ready: str, log_file: Path) -> None:
        self._overview = overview
        self._ready = ready
        self._log_file = log_file
        self._before: tuple[float, dict[str, int]] | None = None

    async def show(self) -> None:
        from rich.live import Live

        with Live(console=console(), auto_refresh=False, transient=True) as live:
            while True:
                bound(self._log_file)
                live.update(self._screen(await self._overview.collect()), refresh=True)
                await asyncio.sleep(_REFRESH_S)

    def _screen(self, snapshot: Snapshot) -> Group:
        from rich.console import Group
        from rich.text import Text

        parts: list[Text | Table] = [
            Text(f"{self._overview.flow}   {self._state()}   {self._lag(snapshot)}", style="bold"),
            Text(self._ready.removeprefix("ready "), style="dim"),
            self._peers(snapshot),
            Text(""),
            *(Text(line, overflow="ellipsis", no_wrap=True, style="dim") for line in self._lines()),
            Text(f"Ctrl-C stops in order. All log lines: {self._log_file}", style="dim"),
        ]
        return Group(*parts)

    def _state(self) -> str:
        reason = self._overview.not_ready()
        down = [one.name for one in self._overview.processes() if not one.up]
        if reason is not None:
            return f"not ready: {reason}"
        return f"degraded: {', '.join(down)} down" if down else "running"

    def _lag(self, snapshot: Snapshot) -> str:
        if snapshot.engine is None:
            return "no pipeline"
        ended = Counter({"done": snapshot.engine["done"]})
        for piece in snapshot.engine["pieces"].values():
            ended.update(piece["statuses"])
        del ended["new"]  # they wait: the table says where
        told = ", ".join(f"{count:,} {status}" for status, count in ended.items())
        return f"lag {snapshot.engine['lag']:,}   {told}"

    def _peers(self, snapshot: Snapshot) -> Table:
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        counts = {
            name: one.counters["out"] + one.counters["send"] for name, one in _peers(snapshot)
        }
        took_s, before = (now - self._before[0], self._before[1]) if self._before else (1.0, counts)
        self._before = (now, counts)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("component", "messages", "a second", "errors", "state", "waiting"):
            right = column in ("messages", "a second", "errors", "waiting")
            table.add_column(column, justify="right" if right else "left")
        table.add_column("last error", no_wrap=True, overflow="ellipsis")
        for name, one in _peers(snapshot):
            sink = snapshot.engine["sinks"].get(name) if snapshot.engine else None
            rate = (counts[name] - before.get(name, 0)) / max(took_s, 0.001)
            state = f"{one.connections} connected" if sink is None else sink["valve"]
            table.add_row(
                Text(printable(name)),
                f"{counts[name]:,}",
                f"{rate:,.0f}",
                f"{one.counters['err']:,}",
                state,
                "" if sink is None else f"{sink['parked']:,}",
                "" if sink is None else Text(printable(sink["error"] or "")),
            )
        return table

    def _lines(self) -> list[str]:
        try:
            with self._log_file.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(0, size - _LOG_TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return []
        return [printable(line) for line in deque(lines, _LOG_LINES)]


def _peers(snapshot: Snapshot) -> list[tuple[str, PeerTotals]]:
    return sorted(snapshot.peers.items())
