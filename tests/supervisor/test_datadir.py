"""The data directory and its lock."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import ConfigError, LogLocked
from penstock.supervisor.datadir import DataDirLock, locate_data_dir, make_data_dir


def test_the_command_line_wins_over_the_environment_and_that_over_the_default(
    tmp_path: Path,
) -> None:
    environment = {"PENSTOCK_DATA_DIR": str(tmp_path / "env")}
    assert locate_data_dir(tmp_path / "given", tmp_path, environment) == tmp_path / "given"
    assert locate_data_dir(None, tmp_path, environment) == tmp_path / "env"
    assert locate_data_dir(None, tmp_path, {}) == tmp_path / ".penstock"


def test_it_is_made_for_its_owner_only(tmp_path: Path) -> None:
    make_data_dir(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    with pytest.raises(ConfigError, match="is a file"):
        make_data_dir(tmp_path / "data")


def test_a_second_one_is_told_who_has_it(tmp_path: Path) -> None:
    lock = DataDirLock.take(tmp_path, "orders")
    with pytest.raises(LogLocked, match=rf"flow orders \(pid {os.getpid()} on "):
        DataDirLock.take(tmp_path, "other")
    lock.release()
    DataDirLock.take(tmp_path, "other").release()


def test_it_is_free_again_when_its_holder_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from penstock.supervisor.datadir import *;"
        "lock = DataDirLock.take(Path(sys.argv[1]), 'x'); print('held', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LogLocked, match=f"pid {process.pid} "):
            DataDirLock.take(tmp_path, "y")
        process.kill()
    DataDirLock.take(tmp_path, "y").release()
