"""`penstock config explain`: which settings count, and where each came from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.flows import parse_overrides, usable_flow
from penstock.cli.output import complain, line, table
from penstock.config.loading import DEFAULT_DATA_DIR
from penstock.config.problems import Problems
from penstock.config.settings import Setting, resolve
from penstock.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Settings: what counts, and why.")


@app.callback()
def _commands() -> None:
    """Settings: what counts, and why."""


@app.command()
def explain(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="A flow file.", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="As on the command line of `run`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Show every setting, where its value came from, and what it was chosen over.

    Default < environment (PENSTOCK_...) < file < command line. Secrets are never shown. In a pipe:
    setting, value, origin, overridden; separated by tabs.
    """
    found = _resolve(file, parse_overrides(settings or []))
    if as_json:
        _as_json(found)
        return
    rows = [
        (one.name, one.value, one.origin, "; ".join(f"{v} ({o})" for o, v in one.overridden))
        for one in found
    ]
    table(("setting", "value", "origin", "overrides"), rows)


def _resolve(file: Path | None, overrides: dict[str, str]) -> list[Setting]:
    if file is not None:
        flow = usable_flow(file, overrides)
        return [_with_data_dir(one, flow.data_dir) for one in flow.settings]
    problems = Problems("settings")
    _, found = resolve(None, os.environ, overrides, problems)
    for problem in problems.sorted():
        complain(str(problem))
    if problems.any_error:
        raise ConfigError("these settings cannot be used")
    return [_with_data_dir(one, Path(DEFAULT_DATA_DIR)) for one in found]


def _with_data_dir(setting: Setting, data_dir: Path) -> Setting:
    if setting.name != "data_dir" or setting.value != "-":
        return setting
    return Setting(setting.name, str(data_dir), setting.origin, setting.overridden)


def _as_json(found: list[Setting]) -> None:
    import orjson

    for one in found:
        record = {
            "setting": one.name,
            "value": one.value,
            "origin": one.origin,
            "overridden": [{"origin": origin, "value": value} for origin, value in one.overridden],
        }
        line(orjson.dumps(record).decode())
