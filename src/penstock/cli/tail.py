"""`penstock tail`: print the messages of a topic."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pyarrow as pa
import typer

from penstock.admin.rows import json_lines, rows, values
from penstock.cli.data import DataDirOption, TopicArgument, existing_topic, open_log
from penstock.cli.exit_codes import ExitCode
from penstock.cli.merge import Round, merged
from penstock.cli.output import complain, no_colour, on_terminal, printable
from penstock.cli.positions import Position
from penstock.errors import ConfigError, CorruptBatch, NoSuchTopic
from penstock.limits import MAX_PARTITIONS
from penstock.log.interface import Log, Reader
from penstock.log.names import TopicName

_POLL_S = 0.05
_POLLS_PER_LOOK = 20
"""While following, how many polls pass before the topic is looked at for new partitions."""


def tail(
    topic: TopicArgument,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Only the payloads, as they are, one a line.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes in, until Ctrl-C.")
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="WHERE",
            help="beginning, end, an offset, a time (ISO 8601), or how long ago: 10m, 2h.",
        ),
    ] = "beginning",
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, max=MAX_PARTITIONS - 1, help="Only this one."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-l", min=0, help="End after this many messages.")
    ] = None,
    data_dir: DataDirOption = None,
) -> int:
    """Print the messages of a topic, by time, up to its end.

    In a pipe: time, partition/offset, event id, key, meta, payload, separated by tabs. With --json,
    one object a line; a payload that is not UTF-8 is base64, and "encoding" says so. Messages that
    fail their checksum are left out, named on stderr, and make the exit code 1.
    """
    if as_json and raw:
        raise ConfigError("--json and --raw: choose one of them")
    position = Position.parse(start)
    log = open_log(data_dir)
    name = existing_topic(log, topic)
    render = json_lines if as_json else _raw_lines if raw else _text_lines
    printer = _Printer(str(name), render, limit)
    view = _View(log, name, position, partition)
    try:
        for found in view.rounds(follow=follow):
            if not printer.put(found):
                break
            _report(view)
    finally:
        view.close()
    return ExitCode.FAILED if _report(view) else ExitCode.OK


class _View:
    """Readers of the partitions, and how far each was read."""

    def __init__(
        self, log: Log, name: TopicName, position: Position, partition: int | None
    ) -> None:
        self._log = log
        self._name = name
        self._only = partition
        self._readers: dict[int, Reader] = {}
        self._next: dict[int, int] = {}
        self.reported: set[tuple[str, int]] = set()
        self._open(position)
        if not self._readers:
            raise NoSuchTopic(
                f"topic {name} has no partition {partition}; "
                f"it has 0 to {log.config(name).partitions - 1}"
            )

    def rounds(self, *, follow: bool) -> Iterator[Round]:
        """What is there now, by time; then, if followed, what comes, as it comes."""
        yield from self._new()
        polls = 0
        while follow:
            yield from self._new()
            first = min(self._readers)
            self._readers[first].wait(self._next[first], _POLL_S)
            polls += 1
            if polls % _POLLS_PER_LOOK == 0:
                self._open(Position(offset=0))

    def _new(self) -> Iterator[Round]:
        sources = []
        for partition, reader in self._readers.items():
            offset, end = self._next[partition], reader.end()
            if offset < end:
                self._next[partition] = end
                sources.append((partition, reader.read(offset, end=end)))
        if sources:
            yield from merged(sources)

    def _open(self, position: Position) -> None:
        """Readers for partitions that have none yet: all, or those that the topic has grown by."""
        for partition in range(self._log.config(self._name).partitions):
            if partition not in self._readers and self._only in (None, partition):
                reader = self._log.reader(self._name, partition)
                self._readers[partition] = reader
                self._next[partition] = position.offset_in(reader)

    def corrupt(self) -> list[CorruptBatch]:
        return [error for reader in self._readers.values() for error in reader.corrupt]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()


def _report(view: _View) -> bool:
    """Name on stderr what was found corrupt, each place once. Whether anything was."""
    for error in view.corrupt():
        place = (error.path, error.position)
        if place not in view.reported:
            view.reported.add(place)
            complain(str(error))
    return bool(view.reported)


class _Printer:
    def __init__(self, topic: str, render: Any, limit: int | None) -> None:
        self._topic = topic
        self._render = render
        self._left = limit

    def put(self, found: Round) -> bool:
        """Print a round; False once the limit is reached."""
        lines: list[bytes] = []
        for run in found.runs:
            batch = run.batch if self._left is None else run.batch.slice(0, self._left)
            # Beyond the limit of one run nothing can be printed; its place must still be kept.
            lines += self._render(batch, self._topic, run.partition)
            lines += [b""] * (run.batch.num_rows - batch.num_rows)
        if len(found.runs) > 1:
            lines = [lines[at] for at in found.order.tolist()]
        if self._left is not None:
            lines = lines[: self._left]
            self._left -= len(lines)
        sys.stdout.buffer.write(b"".join(lines))
        sys.stdout.buffer.flush()
        return self._left is None or self._left > 0


def _raw_lines(batch: pa.RecordBatch, topic: str, partition: int) -> list[bytes]:
    return [(payload or b"") + b"\n" for payload in values(batch.column("payload"))]


def _text_lines(batch: pa.RecordBatch, topic: str, partition: int) -> list[bytes]:
    """For people: on a terminal spaced and dimmed, in a pipe with tabs."""
    terminal = on_terminal()
    dim, plain = ("\x1b[2m", "\x1b[0m") if terminal and not no_colour() else ("", "")
    gap = "  " if terminal else "\t"
    lines = []
    for row in rows(batch, topic, partition):
        meta = " ".join(f"{name}={value}" for name, value in row["meta"].items())
        where = f"{row['time']}{gap}{partition}/{row['offset']}"
        event = f"{row['id']['peer']}/{row['id']['stream']}/{row['id']['seq']}"
        if terminal:
            notes = [text for text in (row["key"], meta) if text]
            extra = f" {dim}({printable(', '.join(notes))}){plain}" if notes else ""
            head = f"{dim}{where}{gap}{printable(event)}{plain}"
            lines.append(f"{head}{gap}{printable(row['payload'])}{extra}\n".encode())
        else:
            cells = (where, event, row["key"] or "", meta, row["payload"])
            lines.append((gap.join([cells[0], *map(printable, cells[1:])]) + "\n").encode())
    return lines
