"""`penstock send`: write messages to a topic, from arguments, a file or stdin."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from penstock.cli.data import DataDirOption, TopicArgument, existing_topic, open_log
from penstock.cli.exit_codes import NotFound
from penstock.cli.lines import Lines, cut_lines
from penstock.cli.output import complain, human_count, line
from penstock.cli.progress import Progress, open_progress
from penstock.errors import ConfigError, PenstockError, TooLarge
from penstock.limits import APPEND_TIMEOUT_S, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, MAX_PARTITIONS
from penstock.log.interface import Appended
from penstock.log.names import TopicName
from penstock.message import CONNECTION_STREAM, Batch, check_sender_stream, encode_meta

PEER = "cli"
"""The peer in the event ids of messages that came through this command."""

_STDIN = "-"
_MAX_SEQ = 2**63 - 1
_LIMIT = f"the limit is {MAX_MESSAGE_BYTES}"


def send(
    topic: TopicArgument,
    messages: Annotated[
        list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="One message each.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("--file", "-F", metavar="FILE", help="One message a line; - is stdin."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The file is one message, newlines and all.")
    ] = False,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The messages' key.")] = None,
    meta: Annotated[
        list[str] | None, typer.Option("--meta", "-m", metavar="NAME=VALUE", help="Repeatable.")
    ] = None,
    stream: Annotated[
        str | None,
        typer.Option(help="A stream name of yours: sending it again makes no duplicates."),
    ] = None,
    seq: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="The number of the first message in --stream. Default: 0; a topic with `ids: producer` "
            "needs it.",
        ),
    ] = None,
    partition: Annotated[
        int | None,
        typer.Option(
            "--partition",
            "-p",
            min=0,
            max=MAX_PARTITIONS - 1,
            help="Default: by key, else by stream.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="How long to wait for whoever owns the partition to take the messages.",
        ),
    ] = APPEND_TIMEOUT_S,
    data_dir: DataDirOption = None,
) -> None:
    """Write messages to a topic and wait until they are on disk.

    Without a MESSAGE or --file they are read from stdin, one a line. A running flow that writes to
    the topic stores them with its own. If that flow crashes in the middle, what it has not answered is
    sent again: with --stream that makes no duplicates, without it may.
    """
    if seq is not None and stream is None:
        raise ConfigError("--seq numbers the messages of a --stream; give that too")
    if messages and file is not None:
        raise ConfigError("messages come from arguments or from --file, not from both")
    if whole and messages:
        raise ConfigError("--whole is for --file and stdin")
    envelope = _Envelope.of(stream, seq or 0, key, meta or [])
    source = _arguments(messages) if messages else _file(file or _STDIN, whole=whole)
    log = open_log(data_dir)
    name = existing_topic(log, topic)
    if seq is None and log.config(name).ids == "producer":
        raise ConfigError(
            f"topic {name} takes its ids from its producers (`ids: producer`): give --stream and --seq, the "
            "id of the first message"
        )
    target = _partition(envelope, log.homes(name), partition)
    appender = log.appender(name, target, timeout_s=wait)
    stored = _Stored(name, target)
    try:
        with source.progress() as progress:
            for lines in source.chunks:
                batch = envelope.batch(lines)
                stored.add(appender.append([batch]))
                progress.advance(batch.count, lines.read_bytes)
    except (PenstockError, OSError, KeyboardInterrupt):
        if stored.count:
            complain(f"interrupted: {stored}")
        raise
    finally:
        appender.close()
    line(str(stored))


@dataclass(slots=True)
class _Envelope:
    """What all messages of one call share, and the number that the next one gets."""

    stream: str
    seq: int
    meta: bytes
    key: bytes | None

    @classmethod
    def of(cls, stream: str | None, seq: int, key: str | None, meta: Sequence[str]) -> _Envelope:
        if stream is None:
            name = f"{CONNECTION_STREAM}{PEER}-{secrets.token_hex(8)}"
        else:
            name = check_sender_stream(stream)
        key_bytes = None if key is None else key.encode("utf-8", "surrogateescape")
        if key_bytes is not None and len(key_bytes) > MAX_KEY_BYTES:
            raise ConfigError(f"--key: has {len(key_bytes)} bytes; the limit is {MAX_KEY_BYTES}")
        return cls(name, seq, encode_meta(_pairs(meta)), key_bytes)

    def batch(self, lines: Lines) -> Batch:
        count = len(lines.lengths)
        if self.seq > _MAX_SEQ - count:
            raise ConfigError("--seq: the numbers of this stream are used up")
        batch = Batch(
            PEER,
            self.stream,
            self.seq,
            lines.blob,
            lines.lengths,
            meta=self.meta,
            keys=None if self.key is None else [self.key] * count,
        )
        self.seq += count
        return batch


def _pairs(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise ConfigError(f"--meta {pair[:80]!r}: expected NAME=VALUE")
        try:
            pair.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"--meta {pair[:80]!a}: is not UTF-8") from None
        found[name] = value
    return found


def _partition(envelope: _Envelope, homes: int, given: int | None) -> int:
    if given is not None:
        return given
    from xxhash import xxh3_64_intdigest

    # By stream as the edge does it: a stream that its sender named must always meet its own numbers, also
    # after the topic has grown.
    place = envelope.key or f"{PEER}/{envelope.stream}".encode()
    return int(xxh3_64_intdigest(place)) % homes


@dataclass(slots=True)
class _Source:
    chunks: Iterator[Lines]
    size_bytes: int | None = None
    description: str = "sending"

    def progress(self) -> Progress:
        return open_progress(self.description, self.size_bytes)


def _arguments(messages: Sequence[str]) -> _Source:
    payloads = [message.encode("utf-8", "surrogateescape") for message in messages]
    for number, payload in enumerate(payloads, 1):
        if len(payload) > MAX_MESSAGE_BYTES:
            raise TooLarge(f"message {number} has {len(payload)} bytes; {_LIMIT}")
    lengths = np.fromiter(map(len, payloads), np.uint32, len(payloads))
    blob = b"".join(payloads)
    return _Source(iter([Lines(blob, lengths, len(blob))]), len(blob))


def _file(path: str, *, whole: bool) -> _Source:
    if path == _STDIN:
        if sys.stdin.isatty():
            typer.echo("reading messages, one a line; Ctrl-D ends", err=True)
        stdin = sys.stdin.buffer
        return _Source(
            _one(stdin.read(MAX_MESSAGE_BYTES + 1), "stdin") if whole else cut_lines(stdin)
        )
    found = Path(path)
    if not found.exists():
        raise NotFound(f"there is no file {path}")
    opened = found.open("rb")
    if whole:
        with opened:
            return _Source(_one(opened.read(MAX_MESSAGE_BYTES + 1), path))
    size_bytes = found.stat().st_size if found.is_file() else None
    return _Source(cut_lines(opened), size_bytes, found.name)


def _one(payload: bytes, path: str) -> Iterator[Lines]:
    if len(payload) > MAX_MESSAGE_BYTES:
        raise TooLarge(f"{path} is too large for one message; {_LIMIT}")
    return iter([Lines(payload, np.array([len(payload)], np.uint32), len(payload))])


@dataclass(slots=True)
class _Stored:
    """What has become durable, for the line that says so."""

    name: TopicName
    partition: int
    count: int = 0
    repeats: int = 0
    first: int | None = None

    def add(self, results: Sequence[Appended]) -> None:
        for result in results:
            self.count += result.count
            self.repeats += result.repeats
            # Behind repeats the new ones are elsewhere than the repeats' offset says.
            if not result.repeats and self.first is None:
                self.first = result.offset

    def __str__(self) -> str:
        new = self.count - self.repeats
        text = f"stored {human_count(new, 'message')} in {self.name}, partition {self.partition}"
        if self.first is not None:
            text += f", from offset {self.first}" if new > 1 else f", offset {self.first}"
        if self.repeats:
            text += f"; {self.repeats:,} were there already"
        return text
