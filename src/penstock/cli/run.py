"""`penstock run`: run a flow until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock import logs
from penstock.cli.exit_codes import ExitCode, NotFound
from penstock.cli.logfile import bound
from penstock.cli.output import complain
from penstock.config.flow import Flow
from penstock.config.problems import FlowFileError
from penstock.errors import ConfigError
from penstock.limits import MAX_PROCESSES
from penstock.supervisor.child import own_stdout
from penstock.supervisor.overview import Overview
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
    master: Annotated[
        str | None,
        typer.Option(help="Where Spark runs: local[N], or spark://HOST:PORT.", show_default=False),
    ] = None,
    edge_only: Annotated[
        bool,
        typer.Option("--edge-only", help="Take messages in and leave them in their topics."),
    ] = False,
    view: Annotated[
        bool | None,
        typer.Option(
            "--view/--no-view",
            help="One screen of rates and states. Default: on a terminal.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Carry through what is in the topics, and end."),
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss", help="Run an edited flow though that loses what `check` says it loses."
        ),
    ] = False,
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
    if master is not None:
        overrides["engine.master"] = master
    if edge_only:
        if once:
            raise ConfigError("--once runs the pipeline and --edge-only leaves it out: give one")
        overrides["engine.enabled"] = "false"
    flow = _load(file, overrides)
    parts = runnable(flow)
    _say_what_is_missing(flow, parts)
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    log_file = _log_to_file(flow) if (terminal if view is None else view) and not once else None
    logs.configure(flow.system.log_level, flow.system.log_format, process="supervisor")
    clean = asyncio.run(_supervise(flow, parts, once, log_file, accept_loss))
    return ExitCode.OK if clean else ExitCode.FAILED


def _log_to_file(flow: Flow) -> Path:
    """Log lines of this process and of all that it starts would tear the view apart."""
    from penstock.supervisor.datadir import make_data_dir

    make_data_dir(flow.data_dir)
    path = flow.data_dir / "penstock.log"
    bound(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 2)
    os.close(fd)
    return path


async def _supervise(
    flow: Flow, parts: Runnable, once: bool, log_file: Path | None, accept_loss: bool
) -> bool:
    if once:
        from penstock.supervisor.once import run_once

        return await run_once(flow, parts, accept_loss=accept_loss, stdout=own_stdout())
    from penstock.admin.server import AdminServer
    from penstock.supervisor.program import Supervisor

    show = None
    if log_file is not None:
        from penstock.cli.view import View

        shown_in = log_file

        async def show(overview: Overview, ready: str) -> None:
            await View(overview, ready, shown_in).show()

    supervisor = Supervisor(
        flow,
        parts,
        open_admin=AdminServer,
        announce=_announce,
        show=show,
        accept_loss=accept_loss,
        stdout=own_stdout() if log_file is None else None,
    )
    return await supervisor.run()


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
