"""A sink for tests of the coordinator: a folder, with files that are renamed on commit.

A file named `down` in it makes the sink unavailable. What it holds is read with `held`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock import faults
from penstock.guarantee import Guarantee
from penstock.sinks.interface import SinkTask, SinkUnavailable, Txn


@dataclass(frozen=True)
class FolderSink:
    name: str
    folder: Path
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE

    def write(self, txn: Txn, partition: int, attempt: int, lines: list[str]) -> bytes:
        self.probe()
        staged = self.folder / "staged" / txn.coordinator / f"{txn.number:06d}"
        staged.mkdir(parents=True, exist_ok=True)
        path = staged / f"{partition}-{attempt}"
        with path.open("w") as file:
            file.write("".join(line + "\n" for line in lines))
            file.flush()
            os.fsync(file.fileno())
        faults.point("folder.prepared", sink=self.name, number=txn.number)
        return str(path).encode()

    def task(self, txn: Txn, partition: int, attempt: int) -> SinkTask:
        raise NotImplementedError("tests call write")

    def commit(self, txn: Txn, tokens: Sequence[bytes]) -> None:
        self.probe()
        done = self.folder / "committed"
        done.mkdir(exist_ok=True)
        for token in tokens:
            path = Path(token.decode())
            target = done / f"{txn.coordinator}.{txn.number:06d}.{path.name.split('-')[0]}"
            if path.exists():
                path.rename(target)
            faults.point("folder.renamed", sink=self.name, number=txn.number)
        self.abort(txn)

    def abort(self, txn: Txn) -> None:
        self.probe()
        staged = self.folder / "staged" / txn.coordinator / f"{txn.number:06d}"
        if staged.exists():
            for path in staged.iterdir():
                path.unlink()
            staged.rmdir()

    def uncommitted(self, coordinator: str) -> list[Txn]:
        self.probe()
        staged = self.folder / "staged" / coordinator
        numbers = sorted(int(path.name) for path in staged.iterdir()) if staged.exists() else []
        return [Txn(coordinator, number) for number in numbers]

    def probe(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / "down").exists():
            raise SinkUnavailable(f"{self.name} is down")

    def close(self) -> None:
        pass

    def held(self) -> list[str]:
        """Committed lines, in the order of the commits."""
        done = self.folder / "committed"
        found: list[str] = []
        for path in sorted(done.iterdir()) if done.exists() else []:
            found += path.read_text().splitlines()
        return found
