"""Files: tailed as a source, written with two-phase commit as a sink; and the dumper."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AliasChoices, BeforeValidator, Field

from penstock.config.address import without_scheme
from penstock.config.options import Options, Seconds, SizeBytes, Texts
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import ReceiverOptions

STANDARD = "what a terminal or a pipe was given cannot be taken back after a crash"


def _out(value: object) -> object:
    return without_scheme(value, "file") if isinstance(value, str) else value


Out = Annotated[str, BeforeValidator(_out), Field(min_length=1)]


class FileSourceOptions(Options):
    paths: Texts = Field(min_length=1, validation_alias=AliasChoices("paths", "path"))
    """Files and directories to follow; `*` matches within a name. One stream a file."""

    start: Literal["beginning", "end"] = "beginning"
    """Where to begin in a file that is seen for the first time."""

    poll_s: Seconds = Field(1.0, gt=0)
    """How often to look for new files, where the system does not tell."""


class FileTargetOptions(Options):
    path: str = Field(min_length=1)
    """The directory to write to."""

    format: Literal["parquet", "jsonl", "raw"] = "jsonl"
    """Parquet, JSON lines, or the payloads as they are, one a line unless interceptors say otherwise."""

    rotate_bytes: SizeBytes | None = Field(None, ge=1)
    """Begin a new file at about this size. Default: one file a batch."""


@declare(Kind.RECEIVER, "file", "Follows files and directories.")
class FileReceiverOptions(FileSourceOptions, ReceiverOptions):
    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",)


@declare(Kind.SINK, "file", "Writes Parquet or JSON lines, exactly once.", available=True)
class FileSinkOptions(FileTargetOptions):
    pass


@declare(Kind.PEER, "file", "Follows files and writes others.")
class FilePeerOptions(ReceiverOptions):
    receive: FileSourceOptions
    """What to follow."""

    send: FileTargetOptions
    """What to write."""

    def default_interceptors(self) -> tuple[str, ...]:
        return ("lines",)


@declare(
    Kind.SINK,
    "dumper",
    "Writes payloads to a file, STDOUT or STDERR, one a line.",
    available=True,
)
class DumperSinkOptions(Options):
    out: Out = Field("STDOUT", validation_alias=AliasChoices("out", "path", "bind"))
    """`STDOUT`, `STDERR`, or the path of a file to append to."""

    def promise(self) -> tuple[Guarantee, str]:
        if self.out in ("STDOUT", "STDERR"):
            return Guarantee.AT_LEAST_ONCE, STANDARD
        return Guarantee.EXACTLY_ONCE, ""
