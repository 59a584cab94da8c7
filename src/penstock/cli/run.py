"""`penstock run`: run a flow until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock import logs
from penstock.cli.exit_codes import ExitCode, NotFound
from penstock.cli.output import complain
from penstock.config.flow import Flow
from penstock.config.problems import FlowFileError
from penstock.errors import ConfigError
from penstock.limits import MAX_PROCESSES
from penstock.supervisor.planning import Runnable, runnable


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The flow file.")],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="Where topics live. Default: .penstock beside the file.",
            show_default=False,
        ),
    ] = None,
    maxprocs: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_PROCESSES, help="How many edge processes may run."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting of `system`. Repeatable."),
    ] = None,
    log_format: Annotated[
        Literal["auto", "plain", "json"] | None,
        typer.Option(help="How log lines on stderr look.", show_default=False),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        typer.Option(help="The least important log lines to write.", show_default=False),
    ] = None,
) -> int:
    """Run a flow until Ctrl-C or SIGTERM.

    Prints one line, `ready` with the addresses, once everything accepts traffic. On the first signal
    it stops taking messages, makes durable and answers what it has, and ends with 0; a second one
    stops it at once.
    """
    overrides = _overrides(settings or [])
    if data_dir is not None:
        overrides["data_dir"] = str(data_dir.absolute())
    if maxprocs is not None:
        overrides["maxprocs"] = str(maxprocs)
    if log_format is not None:
        overrides["log_format"] = log_format
    if log_level is not None:
        overrides["log_level"] = log_level
    flow = _load(file, overrides)
    parts = runnable(flow)
    _say_what_is_missing(flow, parts)
    logs.configure(flow.system.log_level, flow.system.log_format, process="supervisor")
    return ExitCode.OK if asyncio.run(_supervise(flow, parts)) else ExitCode.FAILED


async def _supervise(flow: Flow, parts: Runnable) -> bool:
    from penstock.admin.server import AdminServer
    from penstock.supervisor.program import Supervisor

    return await Supervisor(flow, parts, open_admin=AdminServer, announce=_announce).run()


def _announce(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for the line: run on
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def _load(file: Path, overrides: dict[str, str]) -> Flow:
    from penstock.config import load
    from penstock.flow.components import registry

    if not file.exists():
        raise NotFound(f"there is no flow file {file}")
    try:
        flow = load(file, registry=registry(), overrides=overrides)
    except FlowFileError as error:
        for problem in error.problems:
            complain(str(problem))
        errors = sum(problem.severity == "error" for problem in error.problems)
        raise ConfigError(
            f"{file}: {errors} mistake{'s' * (errors != 1)}; nothing was started"
        ) from None
    for warning in flow.warnings:
        complain(str(warning))
    return flow


def _overrides(settings: list[str]) -> dict[str, str]:
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise ConfigError(f"--set {setting[:80]!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _say_what_is_missing(flow: Flow, parts: Runnable) -> None:
    running = {one.name for one in parts.receivers}
    stay = ", ".join(dict.fromkeys(str(one.topic) for one in parts.receivers))
    later = [gap for gap in parts.missing if gap.component is None or gap.component not in running]
    for gap in parts.missing:
        if gap.component in running:
            complain(f"{gap.component}: {gap.what} is not there yet in this version; ignored")
    if later:
        what = ", ".join(f"{gap.what} ({gap.component or 'the flow'})" for gap in later)
        complain(f"not there yet in this version: {what}; messages stay in the topics: {stay}")
