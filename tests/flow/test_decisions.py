"""The decision log on a disk that fails: what is decided stays so, and what is not, never was."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import LogError
from penstock.flow.decisions import Decision, Decisions
from tests.flow import drill
from tests.flow.folder_sink import FolderSink
from tests.flow.test_transaction import MESSAGES, check


class BadDisk:
    """Lets `good` calls of one kind through; then so many fail, before or after they did their work."""

    def __init__(self, call: Callable[..., Any], good: int, bad: int, error: int) -> None:
        self._call = call
        self._good = good
        self.bad = bad
        self._error = error

    def __call__(self, *arguments: Any) -> Any:
        if self._good or not self.bad:
            self._good -= bool(self._good)
            return self._call(*arguments)
        self.bad -= 1
        raise OSError(self._error, os.strerror(self._error))


def breaks(
    patch: pytest.MonkeyPatch, name: str, *, good: int = 0, bad: int = 1, error: int = errno.EIO
) -> BadDisk:
    disk = BadDisk(getattr(os, name), good, bad, error)
    patch.setattr(os, name, disk)
    return disk


def until_the_sync_fails(folder: Path, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as broken:
        breaks(broken, "fdatasync", good=3)
        with pytest.raises(LogError, match="nothing is decided"):
            drill.run(folder, MESSAGES)


def test_a_decision_whose_sync_failed_is_not_found_again_once_it_is_rolled_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    original = drill.Coordinator

    def keep(*arguments: Any, **options: Any) -> Any:
        made.append(original(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(drill, "Coordinator", keep)
    until_the_sync_fails(tmp_path, monkeypatch)
    made[0].settle()  # rolls back; and then the process is gone
    drill.run(tmp_path, MESSAGES)
    check(tmp_path)


def test_killed_while_a_decision_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_the_sync_fails(tmp_path, monkeypatch)
    drill.run(tmp_path, MESSAGES)
    check(tmp_path)


def test_nothing_is_rolled_back_while_a_decision_is_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = FolderSink("a", tmp_path / "a")
    until_the_sync_fails(tmp_path, monkeypatch)
    staged = sink.uncommitted("drill")
    assert len(staged) == 1
    monkeypatch.undo()
    breaks(monkeypatch, "fsync", bad=1)  # of the new file
    with pytest.raises(LogError):
        Decisions(tmp_path / "engine")
    assert sink.uncommitted("drill") == staged
    drill.run(tmp_path, MESSAGES)
    check(tmp_path)


def test_a_decision_in_doubt_may_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Decisions(tmp_path)
    log.decide(Decision(0, {"a": [b"x"], "b": [b"y"]}, {("t", 0): 5}))
    log.committed(0, "a")
    log.finished(0)
    breaks(monkeypatch, "fdatasync")
    with pytest.raises(LogError):
        log.decide(Decision(1, {"a": [b"never"]}, {("t", 0): 9}))
    assert (log.last, log.frontiers) == (0, {("t", 0): 5})
    log.decide(Decision(1, {"a": [b"z"]}, {("t", 0): 7}))
    log.close()
    again = Decisions(tmp_path)
    assert (again.last, again.frontiers) == (1, {("t", 0): 7})
    assert again.owed == {"b": {0: [b"y"]}, "a": {1: [b"z"]}}
    assert again.unfinished == Decision(1, {"a": [b"z"]}, {("t", 0): 7}, {}, [], [], lost=[])


def test_what_an_unfinished_decision_has_committed_outlives_a_restart(tmp_path: Path) -> None:
    log = Decisions(tmp_path)
    log.decide(Decision(0, {"a": [b"x"], "b": [b"y"]}))
    log.committed(0, "a")
    for _ in range(3):
        log.close()
        log = Decisions(tmp_path)
        assert log.owed == {"b": {0: [b"y"]}}
        assert log.unfinished is not None


def long_log(folder: Path, patch: pytest.MonkeyPatch) -> Decisions:
    """One more `finished`, and it is compacted."""
    log = Decisions(folder)
    for number in range(20):
        log.decide(Decision(number, {"a": [b"x"]}, {("t", 0): number}))
        log.committed(number, "a")
        if number < 19:
            log.finished(number)
    patch.setattr("penstock.flow.decisions.DECISIONS_BYTES", 100)
    return log


def test_a_short_write_tears_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = long_log(tmp_path, monkeypatch)
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: len(data) // 2 + 1]))
    monkeypatch.setattr(
        os, "pwrite", lambda fd, data, at: pwrite(fd, data[: len(data) // 2 + 1], at)
    )
    log.finished(19)
    assert log.path.stat().st_size < 1000
    again = Decisions.peek(tmp_path)
    assert again is not None
    assert (again.last, again.frontiers) == (19, {("t", 0): 19})


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_log_that_cannot_be_compacted_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    log = long_log(tmp_path, monkeypatch)
    breaks(monkeypatch, call, error=errno.ENOSPC)
    log.finished(19)
    log.decide(Decision(20, {"a": [b"x"]}, {("t", 0): 20}))
    log.close()
    again = Decisions(tmp_path)
    assert (again.last, again.frontiers) == (20, {("t", 0): 20})


def test_a_folder_that_cannot_be_synced_leaves_the_log_in_doubt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = long_log(tmp_path, monkeypatch)
    with monkeypatch.context() as broken:
        breaks(broken, "fsync", good=1, bad=2)  # the folder; then the next try of a new file
        log.finished(19)
        with pytest.raises(LogError):
            log.decide(Decision(20, {"a": [b"x"]}))
    log.decide(Decision(20, {"a": [b"x"]}))
    log.close()
    assert Decisions(tmp_path).last == 20
