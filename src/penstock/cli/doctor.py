"""`penstock doctor`: what is missing on this machine, and how to get it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from penstock.cli import machine
from penstock.cli.data import DataDirOption
from penstock.cli.exit_codes import ExitCode
from penstock.cli.machine import Finding, Verdict
from penstock.cli.output import console, line, on_terminal, printable
from penstock.supervisor.datadir import locate_data_dir

_COLOURS = {Verdict.OK: "green", Verdict.ADVICE: "yellow", Verdict.MISSING: "bold red"}


def doctor(data_dir: DataDirOption = None) -> int:
    """Look at this machine: what is missing, and how to get it.

    Exits with 1 if something is missing without which flows cannot run.
    """
    findings = list(_examine(locate_data_dir(data_dir, Path.cwd())))
    show: Callable[[Finding], None] = _show_coloured if on_terminal() else _show_plain
    for finding in findings:
        show(finding)
    missing = [finding for finding in findings if finding.verdict is Verdict.MISSING]
    if on_terminal():
        line("")
        line("Something is missing." if missing else "Flows can run on this machine.")
    return ExitCode.FAILED if missing else ExitCode.OK


def _examine(data_dir: Path) -> Iterator[Finding]:
    yield machine.python()
    yield from machine.packages()
    yield machine.event_loop()
    yield machine.uv()
    yield machine.java()
    yield from machine.disk(data_dir)
    yield machine.open_files()
    yield machine.receive_buffer()


def _show_plain(finding: Finding) -> None:
    cells = (finding.verdict.value, finding.what, finding.found, finding.advice)
    line("\t".join(printable(cell) for cell in cells).rstrip())


def _show_coloured(finding: Finding) -> None:
    from rich.text import Text

    verdict = finding.verdict
    text = Text(f"{verdict.value:8}", style=_COLOURS[verdict])
    text.append(f"{finding.what:16}", style="bold")
    text.append(printable(finding.found), style="default")
    console().print(text, soft_wrap=True)
    if finding.advice:
        console().print(Text(f"{'':24}{finding.advice}", style="yellow"), soft_wrap=True)
    sys.stdout.flush()
