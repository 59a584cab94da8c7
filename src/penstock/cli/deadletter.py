"""`penstock deadletter`: list, show, replay and drop messages that did not end in done."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import orjson
import typer

from penstock.admin.rows import rows as message_objects
from penstock.cli.data import DataDirOption, existing_topic, open_log
from penstock.cli.exit_codes import NotConfirmed
from penstock.cli.output import human_count, line, table
from penstock.config.spelling import nearest
from penstock.errors import ConfigError
from penstock.flow.replay import DeadLetter, DeadLetterBox
from penstock.status import Status
from penstock.supervisor.datadir import locate_data_dir

app = typer.Typer(
    no_args_is_help=True, help="Messages that did not end in done: list, show, replay, drop."
)
_SHOWN = 1000

FlowArgument = Annotated[
    str, typer.Argument(metavar="FLOW", help="The flow's name, or its dead-letter topic.")
]
OffsetsArgument = Annotated[
    list[int] | None,
    typer.Argument(metavar="[OFFSET]...", help="Which ones, as `list` names them."),
]
StatusOption = Annotated[str | None, typer.Option("--status", help="Only those of one status.")]
AllOption = Annotated[bool, typer.Option("--all", help="All of them.")]


@app.command("list")
def list_letters(
    flow: FlowArgument,
    status: StatusOption = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = _SHOWN,
    data_dir: DataDirOption = None,
) -> None:
    """List dead letters, oldest first.

    In a pipe: offset, status, id, reason, separated by tabs.
    """
    with _box(flow, data_dir) as box:
        found: list[tuple[int, str, str, str]] = []
        for letter in _chosen(box, status):
            if len(found) == limit:
                break
            found.append((letter.offset, letter.status, letter.id, letter.reason))
        table(("offset", "status", "id", "reason"), found, right="offset")


@app.command()
def show(
    flow: FlowArgument,
    offset: Annotated[int, typer.Argument(help="Which one, as `list` names it.")],
    data_dir: DataDirOption = None,
) -> None:
    """Show one dead letter with its receipt, as JSON."""
    with _box(flow, data_dir) as box:
        letter = box.find(offset)
        [told] = message_objects(letter.row, str(box.topic), 0)
        receipt = {"status": letter.status, "reason": letter.reason, "branches": letter.branches}
        options = orjson.OPT_INDENT_2
        line(orjson.dumps({**told, "receipt": receipt}, option=options).decode())


@app.command()
def replay(
    flow: FlowArgument,
    offsets: OffsetsArgument = None,
    everything: AllOption = False,
    status: StatusOption = None,
    data_dir: DataDirOption = None,
) -> None:
    """Send dead letters through the flow again.

    Each keeps its id, and goes only to the sinks that do not have it yet. Works while the flow runs
    and while it does not.
    """
    with _box(flow, data_dir) as box:
        count = box.replay(_selected(box, offsets, everything, status))
        line(f"replayed {human_count(count, 'message')}")


@app.command()
def drop(
    flow: FlowArgument,
    offsets: OffsetsArgument = None,
    everything: AllOption = False,
    status: StatusOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    data_dir: DataDirOption = None,
) -> None:
    """Strike dead letters off the list, for good."""
    with _box(flow, data_dir) as box:
        letters = _selected(box, offsets, everything, status)
        if letters and not yes:
            _confirm(len(letters))
        line(f"dropped {human_count(box.drop(letters), 'message')}")


@contextmanager
def _box(flow: str, data_dir: Path | None) -> Iterator[DeadLetterBox]:
    log = open_log(data_dir)
    known = {str(topic) for topic in log.topics()}
    name = flow if flow in known or flow.endswith(".dead") else f"{flow}.dead"
    box = DeadLetterBox(locate_data_dir(data_dir, Path.cwd()), log, existing_topic(log, name))
    try:
        yield box
    finally:
        box.close()


def _selected(
    box: DeadLetterBox, offsets: list[int] | None, everything: bool, status: str | None
) -> list[DeadLetter]:
    if offsets and (everything or status):
        raise ConfigError("give offsets, or --all, or --status; not several of them")
    if offsets:
        return [box.find(offset) for offset in dict.fromkeys(offsets)]
    if not everything and status is None:
        raise ConfigError("say which: offsets, --status STATUS, or --all")
    return list(_chosen(box, status))


def _chosen(box: DeadLetterBox, status: str | None) -> Iterator[DeadLetter]:
    known = [str(one) for one in Status]
    if status is not None and status not in known:
        close = nearest(status, known)
        raise ConfigError(
            f"--status {status!r}: expected one of {', '.join(known)}"
            + (f"; did you mean {close}?" if close else "")
        )
    return (one for one in box.letters() if status is None or one.status == status)


def _confirm(count: int) -> None:
    if not sys.stdin.isatty():
        raise NotConfirmed("dropping dead letters needs a confirmation: give --yes")
    if not typer.confirm(f"Drop {human_count(count, 'message')} for good?", err=True):
        raise NotConfirmed("nothing was dropped")
