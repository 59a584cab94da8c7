"""`penstock doctor`: what it finds, and that it ends with 1 only for what flows cannot run without."""

from __future__ import annotations

import importlib.metadata
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli import machine
from penstock.spark import java
from tests.cli.commands import Result, Terminal
from tests.spark.javas import fake_java


@pytest.fixture
def examined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Callable[..., Result]
) -> Callable[..., tuple[int, dict[str, list[str]]]]:
    """A machine with a Java of ours and nothing on the path; the exit code, and the rows by what they are about."""
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", "21.0.1")))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(java, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(java, "CLONE", tmp_path / "clone")

    def examine(*options: str) -> tuple[int, dict[str, list[str]]]:
        done = here("doctor", *options)
        assert done.err == ""
        rows = [line.split("\t") for line in done.out.splitlines()]
        return done.code, {row[1]: [row[0], *row[2:]] for row in rows}

    return examine


Examined = Callable[..., tuple[int, dict[str, list[str]]]]


def test_a_machine_that_has_everything(examined: Examined, tmp_path: Path) -> None:
    code, rows = examined()
    assert code == 0
    assert rows["Java"] == ["ok", f"21 at {tmp_path}/java/bin/java (JAVA_HOME)"]
    assert rows["data directory"][1].startswith(f"{tmp_path} (for {tmp_path}/.penstock, which")
    assert {name for name, row in rows.items() if row[0] != "ok"} <= {
        *("uv", "disk space", "fdatasync", "open files", "receive buffer"),
    }
    assert all(row[2] for row in rows.values() if row[0] != "ok"), "advice says what to do"
    assert rows["uv"][0] == "advice", "it is not on the path"
    assert list(tmp_path.glob(".penstock")) == [], "nothing is made"


def test_java_is_missing_too_old_or_broken(
    examined: Examined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    code, rows = examined()
    assert (code, rows["Java"][:2]) == (1, ["missing", "not found"])
    assert "set JAVA_HOME" in rows["Java"][2]
    broken = fake_java(tmp_path / "broken", "17.0.9") / "bin" / "java"
    broken.write_text(broken.read_text() + "test $# = 1 || { echo 'Error: no jvm.cfg'; exit 1; }\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "broken"))
    code, rows = examined()
    assert code == 1
    assert rows["Java"][1].endswith("(JAVA_HOME), which is broken: Error: no jvm.cfg")


def test_a_package_is_missing_or_too_old(
    examined: Examined, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["pyarrow>=999", "no-such-thing>=1; python_version > '3'", "extra-thing; extra == 'x'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: wanted)
    code, rows = examined()
    assert code == 1
    found = f"pyarrow is {importlib.metadata.version('pyarrow')}, needs 999; no-such-thing is not installed"
    assert rows["packages"][:2] == ["missing", found]


def test_the_data_directory_cannot_be_written_or_the_limits_are_low(
    examined: Examined, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    code, rows = examined("--data-dir", str(tmp_path / "file" / "data"))
    assert (code, rows["data directory"][1]) == (1, f"{tmp_path}/file cannot be written")
    assert "fdatasync" not in rows
    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 200))
    monkeypatch.setattr(machine, "SEGMENT_BYTES", 2**60)
    code, rows = examined()
    assert (code, rows["open files"][0], rows["disk space"][0]) == (1, "missing", "missing")


def test_on_a_terminal_it_ends_with_what_it_comes_to(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "java", "21.0.1")
    with Terminal("doctor", cwd=tmp_path, env={"JAVA_HOME": str(home)}) as terminal:
        assert terminal.finish() == 0
        assert terminal.text.rstrip().endswith("Flows can run on this machine.")
        assert "\t" not in terminal.text
