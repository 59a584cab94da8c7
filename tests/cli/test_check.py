"""Commands that read a flow file and say what is in it: `check` and `config explain`; and any, of a bad one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Result, Terminal
from tests.config.files import TINY, WEB

BAD = TINY.replace("sink.dumper", "sink.dumpr").replace("connect: out", "connect: outt")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "orders.yaml"


@pytest.mark.parametrize("command", [["graph"], ["check"], ["config", "explain"]])
@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (None, 3, ["there is no flow file orders.yaml"]),
        ("a: [\n", 2, ["orders.yaml:2:1: error: not YAML"]),
        (
            BAD,
            2,
            [
                "orders.yaml:1:90: error: there is no module `sink.dumpr` (did you mean `sink.dumper`?)",
                "orders.yaml:2:27: error: there is no component `outt` (did you mean `out`?)",
            ],
        ),
    ],
)
def test_a_bad_file_is_refused_with_every_mistake(
    here: Callable[..., Result],
    orders: Path,
    command: list[str],
    text: str | None,
    code: int,
    said: list[str],
) -> None:
    if text is not None:
        orders.write_text(text)
    done = here(*command, "orders.yaml")
    assert done.code == code
    assert all(one in done.out + done.err for one in said)
    assert done.out == "" or command == ["check"]


def test_check_prints_the_promise_of_every_path(here: Callable[..., Result], orders: Path) -> None:
    udp = "{module: sink.udp, params: {address: 127.0.0.1:1}}"
    later = "{module: sink.redis, params: {url: 'redis://127.0.0.1', key: s}}"
    orders.write_text(
        f"components: {{web: {WEB}, out: {udp}, file: {{module: sink.file, params: {{path: x}}}}, later: {later}}}\n"
        "pipeline: {web: {links: [out, file, later]}}\n"
    )
    done = here("check", orders)
    assert done.code == 0, done.out
    first, *paths, last = done.out.splitlines()
    assert first == "flow orders: 4 components"
    assert paths[0].startswith("  web → out: best_effort, limited by out: ")
    assert paths[1] == "  web → file: exactly_once"
    assert paths[-1] == "  not there yet in this version: sink.redis (later)"
    assert last == f"{orders}: ok"
    told = json.loads(here("check", orders, "--json").out)
    assert (told["ok"], told["flow"], told["problems"], told["losses"]) == (True, "orders", [], [])
    assert [(one["sink"], one["guarantee"]) for one in told["guarantees"]][:2] == [
        ("out", "best_effort"),
        ("file", "exactly_once"),
    ]
    assert told["missing"] == [{"component": "later", "what": "sink.redis"}]


def test_check_tells_mistakes_to_programs_and_strict_makes_them_of_warnings(
    here: Callable[..., Result], orders: Path
) -> None:
    orders.write_text(BAD)
    done = here("check", orders, "--json")
    told = json.loads(done.out)
    assert (done.code, told["ok"], told["flow"]) == (2, False, None)
    assert [(one["line"], one["severity"], one["hint"]) for one in told["problems"]] == [
        (1, "error", "did you mean `sink.dumper`?"),
        (2, "error", "did you mean `out`?"),
    ]
    uncut = "{module: receiver.tcp, interceptors: [gzip], params: {bind: 127.0.0.1:7072}}"
    orders.write_text(TINY.replace(WEB, uncut))
    lax, strict = here("check", orders), here("check", orders, "--strict")
    assert (lax.code, strict.code) == (0, 2)
    assert ": warning: `web`: no interceptor says where a message ends" in lax.out
    assert strict.out.endswith(f"{orders}: not ok: 0 errors, 1 warning\n")


def test_on_a_terminal_the_place_is_marked(orders: Path) -> None:
    orders.write_text(BAD)
    with Terminal("check", "orders.yaml", cwd=orders.parent, width=200) as terminal:
        assert terminal.finish() == 2
        lines = terminal.text.splitlines()
        at = lines.index("    " + BAD.splitlines()[1])
        assert lines[at + 1].index("^") == lines[at].index("outt")
        assert "\x1b[31;1merror" in terminal.raw


def test_config_explain_says_who_won(
    here: Callable[..., Result], orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.write_text("system: {admin: {bind: 127.0.0.1:81}, log_level: debug}\n" + TINY)
    monkeypatch.setenv("PENSTOCK_ADMIN_BIND", "127.0.0.1:82")
    monkeypatch.setenv("PENSTOCK_MAXPROCS", "3")
    done = here("config", "explain", orders, "--set", "log_level=error")
    rows = {row[0]: row[1:] for row in (line.split("\t") for line in done.out.splitlines())}
    assert rows["stop_timeout_s"] == ["30", "default", ""]
    assert rows["data_dir"] == [str(orders.parent / ".penstock"), "default", ""]
    assert rows["maxprocs"] == ["3", "environment PENSTOCK_MAXPROCS", "1 (default)"]
    assert rows["admin.bind"][:2] == ["127.0.0.1:81", "file, line 1"]
    assert rows["admin.bind"][2].startswith("127.0.0.1:82 (environment PENSTOCK_ADMIN_BIND); ")
    assert rows["log_level"] == ["error", "command line", "debug (file, line 1); info (default)"]
    told = [json.loads(line) for line in here("config", "explain", "--json").out.splitlines()]
    assert [one for one in told if one["setting"] == "maxprocs"] == [
        {
            "setting": "maxprocs",
            "value": "3",
            "origin": "environment PENSTOCK_MAXPROCS",
            "overridden": [{"origin": "default", "value": "1"}],
        }
    ]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("maxproc=1", "did you mean `maxprocs`?"),
        ("maxprocs", "expected NAME=VALUE"),
        ("maxprocs=many", "many"),
    ],
)
def test_a_wrong_setting_is_refused(here: Callable[..., Result], setting: str, said: str) -> None:
    done = here("config", "explain", "--set", setting)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
