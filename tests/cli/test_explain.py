"""`penstock explain`, as a person and as a script would use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.cli.main import run_command
from tests.cli.commands import Terminal, penstock
from tests.config.files import TINY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(TINY)
    return tmp_path


def test_plain_lines_in_a_pipe_and_nothing_is_made(folder: Path) -> None:
    done = penstock("explain", "orders.yaml", cwd=folder)
    assert done.code == 0, done.err
    assert done.lines[0] == "flow orders: 1 query; dead letters in orders.dead"
    assert "query web" in done.lines
    assert "\x1b" not in done.out
    assert [path.name for path in folder.iterdir()] == ["orders.yaml"]


def test_json_for_scripts(folder: Path) -> None:
    done = penstock("explain", "orders.yaml", "--json", cwd=folder)
    [query] = json.loads(done.out)["queries"]
    assert [one["topic"] for one in query["reads"]] == ["orders.web"]
    assert [(one["sink"], one["guarantee"]) for one in query["writes"]] == [
        ("out", "at_least_once")
    ]


def test_on_a_terminal_long_lines_go_on_under_their_beginning(folder: Path) -> None:
    with Terminal("explain", "orders.yaml", cwd=folder, width=60) as terminal:
        assert terminal.finish() == 0
        assert "\x1b[1mquery web\x1b[0m" in terminal.raw
        lines = terminal.text.splitlines()
        assert max(map(len, lines)) <= 60
        under = lines.index("  writes     out (sink.dumper): at_least_once, limited by") + 1
        assert lines[under].startswith(" " * 13 + "out: ")


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (None, 3, "there is no flow file "),
        ("components: 7\n", 2, "orders.yaml: "),
        (TINY.replace("sink.dumper", "sink.dumpr"), 2, "sink.dumper"),
        (
            TINY.replace("module: sink.dumper", "plugin: mine, constructor: New"),
            2,
            "plugins cannot run",
        ),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, code: int, said: str
) -> None:
    path = tmp_path / "orders.yaml"
    if text is not None:
        path.write_text(text)
    assert run_command(["explain", str(path)]) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err
