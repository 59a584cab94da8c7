"""Spark's checkpoint of a piece with state, and the decision log: that they agree, and that neither is lost.

Spark numbers the batches of such a piece, and its state belongs to these numbers. Transactions have the same
numbers, from a `base` on. The file `state` beside the checkpoint says where they began: while it is there, the
checkpoint must be, too. (That a link was changed, and its state is of no use, shows in `flow.changes`.)

Before a transaction is decided, all that Spark has written for its batch is synced: the batch's offsets, its
state, and that the batch before is done. (Spark itself never syncs.) So after a crash of the machine, too, the last
batch that was decided can only be the last one that Spark knows of, or the one before:

    decided   last batch planned   last batch done
    n         n                    n             between two batches
    n         n + 1                n             killed in a batch, before its decision
    n         n                    n - 1         killed after the decision: the batch comes again, and is recognised

Anything else means that files were removed, or restored from different times. Going on would lose or double
messages without a word, so the engine refuses.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import orjson

from penstock import faults, logs
from penstock.engine.offsets import last_of
from penstock.errors import StateLost
from penstock.flow.decisions import Decisions

log = logs.get("engine")


class StateFiles:
    """Of one piece, in its folder."""

    def __init__(self, folder: Path, decisions: Decisions, link: str) -> None:
        self.checkpoint = folder / "checkpoint"
        self._path = folder / "state"
        self._decisions = decisions
        self._link = link
        self._synced: dict[str, tuple[int, int]] = {}  # the file that had the name, and when
        self.base = 0

    def number(self, batch: int) -> int:
        """The transaction of a batch."""
        return self.base + batch

    @property
    def has_begun(self) -> bool:
        """Whether there can be anything in the state."""
        return self._decisions.last >= self.base

    def open(self) -> None:
        """Before the query starts: see that everything agrees. StateLost if it does not."""
        try:
            self.base = int(orjson.loads(self._path.read_bytes())["base"])
        except FileNotFoundError:
            self._begin()
            return
        except (ValueError, KeyError, TypeError):
            raise self._lost(f"{self._path} cannot be read") from None
        planned, done = last_of(self.checkpoint / "offsets"), last_of(self.checkpoint / "commits")
        decided = self._decisions.last - self.base
        if done > planned or decided not in (done, planned) or planned - done > 1:
            raise self._lost(
                f"transactions are decided up to batch {decided}, but Spark's checkpoint has planned "
                f"{planned} and done {done}: files were removed or restored"
            )

    def _begin(self) -> None:
        """State begins empty, where the decisions stand."""
        aside = self.checkpoint.with_name(f"checkpoint.before-{self._decisions.last + 1}")
        if aside.exists():  # and nothing was decided since
            shutil.rmtree(self.checkpoint, ignore_errors=True)
        elif self.checkpoint.exists():
            log.warning("state begins anew; the old is kept", link=self._link, old=str(aside))
            self.checkpoint.rename(aside)
        self.base = self._decisions.last + 1
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(orjson.dumps({"base": self.base}))
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(self._path)
        _sync(self._path.parent)

    def _lost(self, what: str) -> StateLost:
        return StateLost(
            f"{self._link}: {what}. Restore {self._path.parent} as a whole from one moment; or, to begin with "
            f"empty state after the last transaction, remove {self._path} and start again (what the "
            "link remembers, and has not given out, is then gone)"
        )

    def sync(self) -> None:
        """Everything that Spark has written and that has not been synced yet."""
        found: dict[str, tuple[int, int]] = {}
        folders = []  # the deepest first: an entry is synced after what it names
        for folder, below, names in os.walk(self.checkpoint, topdown=False):
            fresh = folder not in self._synced
            found[folder] = (0, 0)
            for name in names:
                path = os.path.join(folder, name)
                try:
                    told = os.stat(path)
                    found[path] = (told.st_ino, told.st_mtime_ns)
                    if self._synced.get(path) != found[path]:
                        _sync(path)
                        fresh = True
                except FileNotFoundError:  # Spark has tidied up
                    continue
            if fresh or any(os.path.join(folder, one) not in self._synced for one in below):
                folders.append(folder)
        for folder in folders:
            _sync(folder)
        self._synced = found
        faults.point("state.synced")


def _sync(path: str | Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
