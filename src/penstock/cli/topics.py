"""`penstock topics`: list, create, describe, delete, verify."""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from typing import Annotated, Any, Literal

import typer

from penstock.cli.data import DataDirOption, TopicArgument, existing_topic, open_log
from penstock.cli.exit_codes import ExitCode, NotConfirmed
from penstock.cli.output import complain, human_bytes, human_count, line, on_terminal, table
from penstock.config.model import KEPT
from penstock.config.units import parse_duration, parse_size, show_size
from penstock.errors import ConfigError
from penstock.limits import MAX_FRAME_BYTES, MAX_PARTITIONS, SEGMENT_AGE_S, SEGMENT_BYTES
from penstock.log.interface import TopicConfig, TopicInfo, differences
from penstock.log.names import TopicName
from penstock.log.survey import survey

app = typer.Typer(no_args_is_help=True, help="Topics: list, create, describe, delete, verify.")

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@app.command("list")
def list_topics(
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only those of one namespace.")
    ] = None,
    data_dir: DataDirOption = None,
) -> int:
    """List topics with their size.

    In a pipe: name, partitions, messages, bytes, separated by tabs. A topic that is damaged has - for
    them and its reason on stderr; the command then exits with 1.
    """
    found = survey(open_log(data_dir), namespace)
    size = human_bytes if on_terminal() else str
    rows: list[tuple[TopicName, object, object, object]] = [
        (info.name, len(info.partitions), _messages(info), size(_size_bytes(info)))
        for info in found.topics
    ]
    rows += [(name, "-", "-", "-") for name, _ in found.damaged]
    rows.sort(key=lambda row: row[0])
    columns = ("topic", "partitions", "messages", "size")
    table(columns, rows, right="partitions messages size")
    sys.stdout.flush()
    for name, reason in found.damaged:
        complain(f"topic {name}: {reason}")
    return ExitCode.FAILED if found.damaged else ExitCode.OK


@app.command()
def create(
    topic: TopicArgument,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            max=MAX_PARTITIONS,
            help="They may only grow. New topics have 1.",
        ),
    ] = None,
    ids: Annotated[
        Literal["log", "producer"] | None,
        typer.Option(
            help="producer: ids come from the one who writes, and must rise. Never changes; new topics "
            "have log."
        ),
    ] = None,
    compression: Annotated[
        Literal["none", "lz4", "zstd"] | None,
        typer.Option(help="Of messages at rest. New topics have none."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="TIME", help=f"Delete what is older: 12h, 7d; or `{KEPT}`."),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"Delete the oldest past this much a partition: 10GiB; or `{KEPT}`.",
        ),
    ] = None,
    segment_bytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help=f"The size of a segment. New topics have {show_size(SEGMENT_BYTES)}.",
        ),
    ] = None,
    segment_age: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help=f"The longest time a segment is written to. New topics have {SEGMENT_AGE_S / 3600:g}h.",
        ),
    ] = None,
    data_dir: DataDirOption = None,
) -> None:
    """Create a topic, or change the settings of one.

    A topic that is there keeps the settings that are not given. What runs goes by new limits of a segment
    when it is started again, by the rest at once.
    """
    name = TopicName.parse(topic)
    given: dict[str, Any] = {
        "partitions": partitions,
        "ids": ids,
        "compression": compression,
        "segment_bytes": segment_bytes
        and _bytes("--segment-bytes", segment_bytes, MAX_FRAME_BYTES),
        "segment_age_s": segment_age and _seconds("--segment-age", segment_age),
    }
    if ids == "producer" and partitions not in (None, 1):
        raise ConfigError("--ids producer: such a topic has exactly one partition")
    log = open_log(data_dir, create=True)
    before = log.config(name) if name in log.topics() else None
    base = before or TopicConfig()
    retention = base.retention
    if keep is not None:
        age_s = None if keep == KEPT else _seconds("--keep", keep)
        retention = replace(retention, age_s=age_s)
    if keep_bytes is not None:
        size_bytes = None if keep_bytes == KEPT else _bytes("--keep-bytes", keep_bytes, 1)
        retention = replace(retention, size_bytes=size_bytes)
    stated = {setting: value for setting, value in given.items() if value is not None}
    config = replace(base, retention=retention, **stated)
    if not log.create(name, config):
        line(f"topic {name} was there already")
    elif before is None:
        line(f"created topic {name} with {human_count(config.partitions, 'partition')}")
    else:
        line(f"changed topic {name}: {differences(before, config)}")


@app.command()
def describe(topic: TopicArgument, data_dir: DataDirOption = None) -> None:
    """Show a topic's settings and partitions.

    In a pipe: partition, begin, end, bytes, segments, packed segments, writer, time of the last
    append, separated by tabs.
    """
    log = open_log(data_dir)
    info = log.describe(existing_topic(log, topic))
    if on_terminal():
        _show_settings(info)
    size = human_bytes if on_terminal() else str
    rows = [
        (
            part.partition,
            part.begin,
            part.end,
            size(part.size_bytes),
            part.segments,
            part.packed_segments,
            part.writer or "-",
            _time(part.last_append_us),
        )
        for part in info.partitions
    ]
    columns = ("partition", "begin", "end", "size", "segments", "packed", "writer", "last append")
    table(columns, rows, right="partition begin end size segments packed")


@app.command()
def delete(topic: TopicArgument, yes: YesOption = False, data_dir: DataDirOption = None) -> None:
    """Delete a topic and all its messages. Refused while anyone writes to it."""
    log = open_log(data_dir)
    name = existing_topic(log, topic)
    if not yes:
        _confirm(name, _messages(log.describe(name)))
    log.delete(name)
    line(f"deleted topic {name}")


@app.command()
def verify(topic: TopicArgument, data_dir: DataDirOption = None) -> int:
    """Read every byte of a topic and report what is corrupt.

    Exits with 1 if anything is.
    """
    log = open_log(data_dir)
    info = log.verify(existing_topic(log, topic))
    for corrupt in info.corrupt:
        complain(str(corrupt))
    if info.corrupt:
        line(f"topic {info.name}: {human_count(len(info.corrupt), 'damaged place')}")
        return ExitCode.FAILED
    size = human_bytes(_size_bytes(info))
    line(f"topic {info.name}: {human_count(_messages(info), 'message')}, {size}: all sound")
    return ExitCode.OK


def _confirm(name: TopicName, messages: int) -> None:
    if not sys.stdin.isatty():
        raise NotConfirmed(f"deleting {name} needs a confirmation: give --yes")
    what = f"This deletes topic {name} with {human_count(messages, 'message')}, for good."
    typer.echo(what, err=True)
    if typer.prompt("Type its name to go on", default="", show_default=False, err=True) != str(
        name
    ):
        raise NotConfirmed("that is not its name; nothing was deleted")


def _show_settings(info: TopicInfo) -> None:
    config = info.config
    retention = [] if config.retention.age_s is None else [f"{config.retention.age_s:g} s"]
    if config.retention.size_bytes is not None:
        retention.append(f"{human_bytes(config.retention.size_bytes)} a partition")
    line(f"topic        {info.name}")
    line(f"ids          {config.ids}")
    line(f"compression  {config.compression}")
    line(f"kept         {' and '.join(retention) or 'for ever'}")
    line(f"segments     {human_bytes(config.segment_bytes)} or {config.segment_age_s:g} s")
    line("")
    sys.stdout.flush()


def _messages(info: TopicInfo) -> int:
    return sum(partition.end - partition.begin for partition in info.partitions)


def _size_bytes(info: TopicInfo) -> int:
    return sum(partition.size_bytes for partition in info.partitions)


def _time(time_us: int | None) -> str:
    if time_us is None:
        return "-"
    moment = datetime.datetime.fromtimestamp(time_us // 1_000_000, datetime.UTC)
    return moment.isoformat().replace("+00:00", "Z")


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from None
    assert isinstance(seconds, float)
    if not 0 < seconds < 1e10:
        raise ConfigError(f"{option} {text!r}: expected more than nothing, and less than for ever")
    return seconds


def _bytes(option: str, text: str, least: int) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: {error}") from None
    assert isinstance(size, int)
    if not least <= size < 2**63:
        raise ConfigError(f"{option} {text!r}: expected at least {show_size(least)}")
    return size
