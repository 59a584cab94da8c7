"""`sink.file`: files in a directory, each of which appears there whole and only once it is committed.

A task writes to the hidden folder `.penstock` inside the directory, on the same file system, so that
`commit` is one rename a file. A committed file is never touched again. Its name says where it came from:

    events-TRANSACTION-TASK-INDEX-UNIQUE.parquet        (or .jsonl, .raw)

Names sort by transaction; the last part is random, so that a flow that starts over at transaction 0 cannot
overwrite what an earlier life of it has written. A program that reads the directory may move or delete
committed files at any time: a commit that is repeated does not bring them back.

Commit, in steps:

1. Check that this is the folder in which the transaction was prepared.
2. Rename every file that a token names. One that is not there was renamed before.
3. fsync the directory.
4. Remove what other attempts have left behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from penstock import faults
from penstock.guarantee import Guarantee
from penstock.limits import ENCODE_BYTES
from penstock.log.embedded.active import sync_folder
from penstock.sinks.columns import pieces, without_own_meta
from penstock.sinks.encode import json_lines, plain_lines
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Prepared, Txn
from penstock.sinks.staged_files import LinesFile, ParquetFile, StagedFile, WrappedFile
from penstock.sinks.staging import Attempt, Staging, decode_tokens, reaching

STAGING_FOLDER: Final = ".penstock"

Format = Literal["parquet", "jsonl", "raw"]


@dataclass(frozen=True, slots=True)
class FileSink:
    name: str
    directory: Path
    format: Format = "jsonl"
    rotate_bytes: int | None = None
    framing: Framing = field(default_factory=Framing)  # of `raw`; none is one payload a line

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def _staging(self) -> Staging:
        return Staging(self.directory / STAGING_FOLDER, self.name)

    def task(self, txn: Txn, partition: int, attempt: int) -> FileTask:
        with reaching(self.name, self.directory):
            return FileTask(self, Attempt(self._staging, txn, partition, attempt))

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        found = decode_tokens(tokens)
        with reaching(self.name, self.directory):
            self._staging.check(found)  # 1
            folder = self._staging.folder(txn.coordinator)
            for token in found:  # 2
                for index, name in enumerate(token.files):
                    task = f"{token.partition:05d}-{index:03d}-{token.unique}"
                    final = f"events-{txn.number:012d}-{task}.{self.format}"
                    with suppress(FileNotFoundError):
                        os.rename(folder / name, self.directory / final)
                    faults.point("file.renamed")
            if found:  # 3
                sync_folder(self.directory)
                faults.point("file.committed")
            self._staging.remove(txn)  # 4

    def abort(self, txn: Txn) -> None:
        with reaching(self.name, self.directory):
            self._staging.remove(txn)

    def uncommitted(self, coordinator: str) -> list[Txn]:
        with reaching(self.name, self.directory):
            return self._staging.uncommitted(coordinator)

    def probe(self) -> None:
        with reaching(self.name, self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self.directory, os.W_OK | os.X_OK):
                raise PermissionError(13, "this process may not write there", str(self.directory))

    def close(self) -> None:
        """Nothing is open."""


class FileTask:
    def __init__(self, sink: FileSink, attempt: Attempt) -> None:
        self._sink = sink
        self._attempt = attempt
        self._file: StagedFile | None = None

    def write(self, events: pa.RecordBatch) -> None:
        sink = self._sink
        with reaching(sink.name, sink.directory):
            for rows in self._encoded(without_own_meta(events)):
                self._write(rows)

    def _encoded(self, events: pa.RecordBatch) -> Iterator[Any]:
        """As the file takes it: encoded rows, payloads that the file wraps itself, or columns."""
        if self._sink.format == "raw" and self._sink.framing.specs:
            yield events.column(
                "payload"
            )  # in one piece: either all of it can be wrapped or nothing
            return
        for part in pieces(events, ENCODE_BYTES):
            if self._sink.format == "jsonl":
                yield json_lines(part)
            elif self._sink.format == "raw":
                yield plain_lines(part.column("payload"))
            else:
                yield part

    def _write(self, rows: Any) -> None:
        while len(rows):
            if self._file is None:
                self._file = self._begin()
            rows = rows.slice(self._file.write(rows))
            if self._file.full:
                self._file.close()
                self._file = None

    def _begin(self) -> StagedFile:
        sink = self._sink
        if sink.format == "parquet":
            return ParquetFile(self._attempt, sink.rotate_bytes)
        if sink.format == "raw" and sink.framing.specs:
            return WrappedFile(self._attempt, sink.rotate_bytes, sink.framing)
        return LinesFile(self._attempt, sink.rotate_bytes)

    def prepare(self) -> Prepared:
        sink = self._sink
        with reaching(sink.name, sink.directory):
            if self._file is not None:
                self._file.close()
                self._file = None
            if not self._attempt.paths:
                return Prepared()
            return Prepared(self._attempt.token())

    def abort(self) -> None:
        if self._file is not None:
            self._file.discard()
        self._attempt.remove()
