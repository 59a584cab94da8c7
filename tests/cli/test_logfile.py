"""The log file of a flow that is shown on a terminal stays within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.cli import logfile


def test_a_full_log_file_starts_anew_for_all_who_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logfile, "LOG_FILE_BYTES", 100)
    path = tmp_path / "penstock.log"
    writers = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for _ in range(2)]
    for turn in range(50):
        for writer in writers:
            os.write(writer, b"%02d a line of the log\n" % turn)
        logfile.bound(path)
    for writer in writers:
        os.close(writer)
    assert path.stat().st_size <= 100
    kept = (tmp_path / "penstock.log.1").read_text() + path.read_text()
    assert kept.splitlines()[-1] == "49 a line of the log"
    assert len(kept) < 400
    assert (tmp_path / "penstock.log.1").stat().st_mode & 0o777 == 0o600


def test_a_log_file_that_is_not_there_is_no_mistake(tmp_path: Path) -> None:
    logfile.bound(tmp_path / "penstock.log")
