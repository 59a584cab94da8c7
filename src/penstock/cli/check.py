"""`penstock check`: every mistake in a flow file, with its place; and what the flow promises."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.exit_codes import ExitCode, NotFound
from penstock.cli.output import human_count, line, no_colour, printable
from penstock.config import Flow, Loaded, Problem, inspect
from penstock.config.guarantees import PathGuarantee, path_guarantees
from penstock.flow.changes import Loss, find_changes
from penstock.flow.components import registry
from penstock.flow.graph import Graph
from penstock.flow.planner import plan
from penstock.flow.planrecord import FOLDER

_COLOURS = {"error": "31;1", "warning": "33;1"}


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The flow file.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings are errors.")] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            help="Where the flow runs, to see whether it can carry on there. Default: as for `run`.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Check a flow file and report every mistake at once.

    Also prints the delivery guarantee of every path with the component that limits it, what is known but
    not there yet in this version, and, if the flow has run before and was edited since, what would be lost by
    running it as it is now. Exit code 0 if the file can be used, 2 if not, 4 if something would be lost.
    """
    if not file.exists():
        raise NotFound(f"there is no flow file {file}")
    overrides = {} if data_dir is None else {"data_dir": str(data_dir.absolute())}
    loaded = inspect(file, registry=registry(), overrides=overrides)
    ok = loaded.flow is not None and not (strict and loaded.problems)
    losses = [] if loaded.flow is None else _losses(loaded.flow)
    if as_json:
        line(_as_json(loaded, ok, losses))
    else:
        _show(file, loaded, ok, losses)
    if ok and losses:
        return ExitCode.REFUSED
    return ExitCode.OK if ok else ExitCode.USAGE


def _losses(flow: Flow) -> list[Loss]:
    """What running the flow as it is now would lose of what it was."""
    if flow.missing() or not (flow.data_dir / FOLDER).is_dir():
        return []
    return list(find_changes(flow, plan(Graph(flow))).losses)


def _show(file: Path, loaded: Loaded, ok: bool, losses: list[Loss]) -> None:
    colour = sys.stdout.isatty() and not no_colour()
    for problem in loaded.problems:
        show_problem(problem, loaded.source, colour=colour, with_source=sys.stdout.isatty())
    if loaded.flow is not None:
        _show_flow(loaded.flow)
    for loss in losses:
        line(f"  would be lost: {printable(str(loss))}")
    errors = sum(problem.severity == "error" for problem in loaded.problems)
    warnings = len(loaded.problems) - errors
    if not ok or warnings:
        counts = f"{human_count(errors, 'error')}, {human_count(warnings, 'warning')}"
        line(f"{file}: {'ok' if ok else 'not ok'}: {counts}")
    elif losses:
        line(
            f"{file}: ok, but not to carry on with: {human_count(len(losses), 'thing')} would be lost"
        )
    else:
        line(f"{file}: ok")


def show_problem(
    problem: Problem, source: str | None, *, colour: bool = False, with_source: bool = False
) -> None:
    """One line; on a terminal also the line in question, with a mark under the place."""
    place = f"{problem.file}:{problem.line}:{problem.column}" if problem.line else problem.file
    severity = _coloured(problem.severity, _COLOURS[problem.severity], colour)
    hint = f" ({problem.hint})" if problem.hint else ""
    line(f"{printable(place)}: {severity}: {printable(problem.message + hint)}")
    lines = source.splitlines() if source and with_source else []
    # Line numbers are those of the flow file: problems from elsewhere have none.
    if 0 < problem.line <= len(lines):
        text = lines[problem.line - 1]
        before = text[: problem.column - 1]
        line(f"    {printable(text)}")
        line(f"    {' ' * len(printable(before))}{_coloured('^', '32;1', colour)}")


def _coloured(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _show_flow(flow: Flow) -> None:
    line(f"flow {flow.name}: {human_count(len(flow.components), 'component')}")
    for path in path_guarantees(flow.components, flow.edges):
        line(f"  {path.source} → {path.sink}: {_promise(path)}")
    for gap in flow.missing():
        where = f" ({gap.component})" if gap.component else ""
        line(f"  not there yet in this version: {gap.what}{where}")


def _promise(path: PathGuarantee) -> str:
    if path.limited_by is None:
        return str(path.guarantee)
    return f"{path.guarantee}, limited by {path.limited_by}: {path.reason}"


def _as_json(loaded: Loaded, ok: bool, losses: list[Loss]) -> str:
    import orjson

    flow = loaded.flow
    result: dict[str, Any] = {
        "ok": ok,
        "flow": flow.name if flow else None,
        "problems": [
            {
                "file": one.file,
                "line": one.line,
                "column": one.column,
                "severity": one.severity,
                "message": one.message,
                "hint": one.hint,
            }
            for one in loaded.problems
        ],
    }
    if flow is not None:
        result["losses"] = [
            {"component": one.component, "what": one.what, "instead": one.instead} for one in losses
        ]
        result["guarantees"] = [
            {
                "source": path.source,
                "sink": path.sink,
                "guarantee": str(path.guarantee),
                "limited_by": path.limited_by,
                "reason": path.reason or None,
            }
            for path in path_guarantees(flow.components, flow.edges)
        ]
        result["missing"] = [
            {"component": gap.component, "what": gap.what} for gap in flow.missing()
        ]
    return orjson.dumps(result).decode()
