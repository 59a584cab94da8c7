"""What commands print: tables and colour on a terminal, plain lines in a pipe.

In a pipe a table is one line a row, its cells separated by tabs, with no head: `cut` and `awk` read
it. Text that came from outside (payloads, names) is stripped of what a terminal would act on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def on_terminal() -> bool:
    return sys.stdout.isatty()


def console() -> Console:
    """For stdout. Knows NO_COLOR, and the width of the terminal."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, right: str = "") -> None:
    """`right` names, separated by spaces, the columns that hold numbers."""
    if not on_terminal():
        for row in rows:
            line("\t".join(printable(str(cell)) for cell in row))
        return
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        numeric = column in right.split()
        shown.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        # Text, not markup: a cell must not be able to style itself.
        shown.add_row(*(Text(printable(str(cell))) for cell in row))
    console().print(shown)


def line(text: str) -> None:
    sys.stdout.write(text + "\n")


def complain(text: str) -> None:
    """The one line that says what was wrong, on stderr."""
    colour = sys.stderr.isatty() and not no_colour()
    name = "\x1b[31mpenstock:\x1b[0m" if colour else "penstock:"
    sys.stderr.write(f"{name} {printable(text)}\n")
    sys.stderr.flush()


def no_colour() -> bool:
    import os

    return bool(os.environ.get("NO_COLOR"))


def printable(text: str) -> str:
    """Control characters as escapes (`\\n`, `\\x1b`): what is shown is one line, and only text."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def human_bytes(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def human_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
