"""`penstock`: finds the command, runs it, and turns what it raises into one line and an exit code.

Commands live in modules of their own, and only the module of the command at hand is imported: the
whole of Penstock takes half a second to import, `penstock version` should not.
"""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import typer

from penstock.cli.exit_codes import ExitCode, exit_code
from penstock.cli.output import complain
from penstock.errors import PenstockError, WouldLose
from penstock.version import __version__


@dataclass(frozen=True, slots=True)
class _Command:
    """`attribute` of `module` is a function, or a Typer app with commands of its own."""

    name: str
    module: str
    attribute: str
    panel: str


_FLOWS = "Flows"
_TOPICS = "Topics"
_HELP = "This installation"
_COMMANDS = (
    _Command("run", "penstock.cli.run", "run", _FLOWS),
    _Command("check", "penstock.cli.check", "check", _FLOWS),
    _Command("explain", "penstock.cli.explain", "explain", _FLOWS),
    _Command("test", "penstock.cli.test", "run_tests", _FLOWS),
    _Command("graph", "penstock.cli.graph", "graph", _FLOWS),
    _Command("list", "penstock.cli.list", "list_components", _FLOWS),
    _Command("schema", "penstock.cli.schema", "schema", _FLOWS),
    _Command("config", "penstock.cli.config", "app", _FLOWS),
    _Command("topics", "penstock.cli.topics", "app", _TOPICS),
    _Command("tail", "penstock.cli.tail", "tail", _TOPICS),
    _Command("send", "penstock.cli.send", "send", _TOPICS),
    _Command("deadletter", "penstock.cli.deadletter", "app", _TOPICS),
    _Command("doctor", "penstock.cli.doctor", "doctor", _HELP),
    _Command("version", "penstock.cli.version", "version", _HELP),
)
_OUTLIVES_ITS_READER = ("run", "send")
"""Commands that have something to finish when nobody reads their output any more."""
_EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage or flow file, 3 not found, 4 refused, "
    "130 interrupted."
)


def build(arguments: Sequence[str]) -> typer.Typer:
    """The application, with all commands, or with the one that `arguments` call for."""
    app = typer.Typer(
        name="penstock",
        help="Events into Spark and out again, exactly once, with a receipt for every message.",
        epilog=_EPILOG,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    named = [command for command in _COMMANDS if [command.name] == list(arguments[:1])]
    for command in named or _COMMANDS:
        found = getattr(importlib.import_module(command.module), command.attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=command.name, rich_help_panel=command.panel)
        else:
            app.command(command.name, rich_help_panel=command.panel)(found)
    return app


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and end."
    ),
) -> None:
    """Events into Spark and out again, exactly once, with a receipt for every message."""


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    try:
        # Without stand-alone mode the result of a command, or the code of an Exit, comes back.
        code = build(arguments)(list(arguments), prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
        return int(code) if isinstance(code, int) else ExitCode.OK
    except typer.TyperException as error:  # a mistake on the command line
        message = _one_line(error.format_message())
        if message:  # none where the help was shown, since nothing was asked for
            complain(f"{message}{_see_help(arguments)}")
        return ExitCode.USAGE
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except PenstockError as error:
        for loss in error.losses if isinstance(error, WouldLose) else ():
            complain(loss)
        complain(str(error))
        return exit_code(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
        return ExitCode.FAILED


def _see_help(arguments: Sequence[str]) -> str:
    known = {command.name for command in _COMMANDS}
    command = f" {arguments[0]}" if arguments and arguments[0] in known else ""
    return f" (see `penstock{command} --help`)"


def _one_line(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def main() -> NoReturn:
    arguments = sys.argv[1:]
    if not (arguments and arguments[0] in _OUTLIVES_ITS_READER):
        # As every Unix tool: `penstock tail TOPIC | head` ends when head has had enough.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(run_command(arguments))
