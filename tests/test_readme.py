"""What `make run` runs, and then the commands of the README, typed as they are printed, one after the other."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest

from penstock.cli.main import run_command
from penstock.config import load
from penstock.flow.components import registry
from tests.supervisor.running import ENDS_S, PENSTOCK, WAIT_S, clean_environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    line.strip().partition("    #")[0]
    for block in re.findall(r"(?m)(?:^ {4}.*\n)+", re.sub(r"(?s)```.*?```", "", README))
    for line in block.splitlines()
    if not line.strip().startswith("#")
]
CURL = '''
"""As much of curl as the README needs: it may not be installed, and the ports may be another's."""
import argparse, json, os, sys, urllib.error, urllib.request
parser = argparse.ArgumentParser()
parser.add_argument("url")
parser.add_argument("-d", "--data", "--data-binary")
parser.add_argument("-H", "--header", action="append", default=[])
parser.add_argument("-X", "--request")
given = parser.parse_args()
for printed, bound in json.loads(os.environ["ADDRESSES"]).items():
    given.url = given.url.replace(printed, bound)
data = sys.stdin.buffer.read() if given.data == "@-" else given.data and given.data.encode()
headers = dict(line.split(": ", 1) for line in given.header)
try:
    answer = urllib.request.urlopen(urllib.request.Request(given.url, data, headers, method=given.request))
except urllib.error.HTTPError as error:
    answer = error
print(answer.code, answer.read().decode())
'''


def program(path: Path, *command: str) -> None:
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o755)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What `make run` finds and makes, with free ports."""
    (tmp_path / "examples").mkdir()
    text = (ROOT / "examples/quickstart.yaml").read_text()
    for address in ("127.0.0.1:7071", "127.0.0.1:8080"):
        assert address in text
        text = text.replace(address, "127.0.0.1:0")
    (tmp_path / "examples/quickstart.yaml").write_text(text)
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/quickstart.sh", tmp_path / "tools")
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    program(programs / "penstock", *PENSTOCK)
    program(programs / "python", sys.executable)
    (programs / "curl.py").write_text(CURL)
    program(programs / "curl", sys.executable, str(programs / "curl.py"))
    (programs / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    return tmp_path


def typed(command: str, cwd: Path, env: dict[str, str]) -> str:
    """What the command prints. One that would go on for ever gets Ctrl-C once it has printed something."""
    process = subprocess.Popen(
        ["bash", "-c", f"source .venv/bin/activate; exec 2>&1; {command}"],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    first = ""
    if "--follow" in command:
        first = process.stdout.readline()
        os.killpg(process.pid, signal.SIGINT)
    out = first + process.communicate(timeout=WAIT_S)[0]
    assert process.returncode == (130 if "--follow" in command else 0), (command, out)
    return out


class Quickstart:
    """What `make run` starts: the lines that it prints until it just runs. Ends with a Ctrl-C."""

    def __init__(self, clone: Path) -> None:
        self._log = clone / "stderr"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["bash", "tools/quickstart.sh"],
                cwd=clone,
                env=clean_environment(),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith("  penstock tail"):
                return self
        raise AssertionError(f"it ended: {self.lines}, {self._log.read_text()}")

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGINT)
        self._process.communicate(timeout=ENDS_S)

    @property
    def log(self) -> str:
        return self._log.read_text()


NO_ROUTE = r"unroutable\tweb/~\w+/\d+\tno route for dest=nowhere"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_make_run_and_the_commands_that_follow_it(clone: Path) -> None:
    with Quickstart(clone) as shown:
        addresses = it_shows_what_became_of_its_messages(shown.lines)
        env = clean_environment(ADDRESSES=json.dumps(addresses))
        said = {
            command: typed(command, clone, env)
            for command in COMMANDS
            if not command.startswith(("make ", "source "))
        }
    answers = [out for command, out in said.items() if "curl" in command]
    assert [out.partition(" ")[0] for out in answers] == ["200", "406", "202", "202", "202"]
    assert '"status":"done"' in answers[0]
    assert "no route for dest=nowhere" in answers[1]
    assert said["tail -n 1 .penstock/a.out"] == "hello\n"
    letters = said["penstock deadletter list quickstart"]
    assert re.fullmatch(rf"0\t{NO_ROUTE}\n1\t{NO_ROUTE}\n", letters), letters
    [tailed] = [out for command, out in said.items() if "--follow" in command]
    assert tailed.splitlines()[0].endswith("dest=a\thello from a")
    assert "event=stopped flow=quickstart clean=true" in shown.log


def it_shows_what_became_of_its_messages(lines: list[str]) -> dict[str, str]:
    """Gives back where what the README calls by its usual addresses listens."""
    [ready] = [line for line in lines if line.startswith("ready ")]
    bound = dict(word.split("=", 1) for word in ready.split()[1:])
    posts = [line for line in lines if line.startswith("POST ")]
    told = [re.sub(r" \(web/~\w+/\d+\)$", "", line.partition(" -> ")[2]) for line in posts]
    assert told == [*["200 done"] * 3, "406 unroutable no route for dest=nowhere"]
    rest = lines[lines.index("In .penstock/a.out:") + 1 :]
    assert rest[:3] == ["hello from a", "hello from a", "Dead letters:"]
    assert re.fullmatch(f"0\t{NO_ROUTE}", rest[3]), rest[3]
    assert f"'http://{bound['web']}/?dest=a&sync=true'" in rest[-2]
    return {"127.0.0.1:7071": bound["web"], "127.0.0.1:8080": bound["admin"]}


def test_whatever_else_it_tells_to_type_is_there() -> None:
    targets = re.findall(r"(?m)^([a-z]+):", (ROOT / "Makefile").read_text())
    flow = load(ROOT / "examples/quickstart.yaml", registry=registry(), environment={})
    for command in COMMANDS:
        word, *rest = command.split()
        if word == "make":
            assert rest[0] in targets
        elif word == "tail":
            assert rest[-1] == str(flow.components["box_a"].options.out)  # type: ignore[attr-defined]


def test_its_flow_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [text] = re.findall(r"(?s)```yaml\n(.*?)```", README)
    (tmp_path / "flow.yaml").write_text(text)
    assert run_command(["check", str(tmp_path / "flow.yaml")]) == 0, capsys.readouterr().out
