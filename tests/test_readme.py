"""The commands of the README, typed as they are printed, one after the other.

The flow runs without its engine, which takes long to start: what a sender sees who waits for a receipt
(`sync=true`) is in tests/engine/test_waiting.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli.main import run_command
from penstock.config import load
from penstock.flow.components import registry
from penstock.flow.deadletters import DeadLetters
from penstock.flow.receipt import Position, Receipt
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import EventId
from penstock.sinks.interface import Txn
from penstock.status import Status
from tests.supervisor.running import PENSTOCK, WAIT_S, Run, clean_environment

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
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    program(programs / "penstock", *PENSTOCK)
    (programs / "curl.py").write_text(CURL)
    program(programs / "curl", sys.executable, str(programs / "curl.py"))
    (programs / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    return tmp_path


def started_by_make_run() -> list[str]:
    """The arguments of `penstock run` in tools/quickstart.sh."""
    [line] = re.findall(r'"\$penstock" run (.*?) > ', (ROOT / "tools/quickstart.sh").read_text())
    return shlex.split(line)


def leave_a_dead_letter(data: Path) -> None:
    """Of the first message, as the engine would."""
    log, dead = EmbeddedLog(data), TopicName.parse("quickstart.dead")
    log.create(dead, TopicConfig())
    letters = DeadLetters(data, dead)
    event = EventId("web", "s", 0)
    receipt = Receipt(Status.UNROUTABLE, "no route for dest=nowhere", {}, event)
    letters.append(Txn("quickstart.web", 0), [(Position("quickstart.web", 0, 0), receipt)])
    letters.close()


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


@pytest.mark.slow
def test_the_commands_work_in_their_order(clone: Path) -> None:
    file, *options = started_by_make_run()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone)
        run = Run(Path(file), *options)
    with run:
        run.wait_ready()
        bound = {"127.0.0.1:7071": run.addresses["web"], "127.0.0.1:8080": run.addresses["admin"]}
        env = clean_environment(ADDRESSES=json.dumps(bound))
        said = {}
        for command in COMMANDS:
            if command.startswith(("make ", "source ", "tail ")):
                continue
            if command.startswith("penstock deadletter"):
                leave_a_dead_letter(clone / ".penstock")
            said[command] = typed(command.replace("&sync=true", ""), clone, env)
    posts = [out for command, out in said.items() if "curl" in command]
    assert len(posts) == 5
    assert all(out.startswith("202 ") for out in posts)
    [listed] = [out for command, out in said.items() if "deadletter" in command]
    assert re.fullmatch(r"0\tunroutable\tweb/~\w+/0\tno route for dest=nowhere\n", listed)
    [tailed] = [out for command, out in said.items() if "tail" in command]
    assert tailed.splitlines()[0].endswith("dest=a\thello")


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
