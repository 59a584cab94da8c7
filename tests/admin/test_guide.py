"""The commands in the guide to operating a flow work as printed."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from tests.cli.commands import penstock
from tests.supervisor.running import ONE_RECEIVER, Run, clean_environment
from tests.test_readme import CURL, program, typed

GUIDE = (Path(__file__).parents[2] / "docs/guide/operating.md").read_text()
COMMANDS = re.findall(r"(?m)^ {4}(curl .*)$", GUIDE)


def test_every_call_of_the_admin_api_works(tmp_path: Path) -> None:
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    (programs / "curl.py").write_text(CURL)
    program(programs / "curl", sys.executable, str(programs / "curl.py"))
    (programs / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER)
    with Run(flow) as run:
        sent = run.wait_ready().post(b"x")
        env = clean_environment(ADDRESSES=json.dumps({"127.0.0.1:8080": run.addresses["admin"]}))
        codes = {}
        for command in COMMANDS:
            with_id = re.sub(r"receipts/\S+", f"receipts/{sent}", command)
            codes[command] = typed(with_id, tmp_path, env).split()[0]
    assert len(codes) == 11
    expected = [
        "201" if "-d" in command else "204" if "DELETE" in command else "200" for command in codes
    ]
    assert list(codes.values()) == expected


def test_settings_come_from_where_it_says(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER)
    env = clean_environment(**dict(re.findall(r"`(PENSTOCK_\w+)=(\w+)`", GUIDE)))
    told = penstock("config", "explain", "orders.yaml", cwd=tmp_path, env=env)
    assert (told.code, told.err) == (0, "")
    for name in ("maxprocs", "log.retention.age_s", "log_format"):
        [line] = [line for line in told.lines if line.startswith(f"{name}\t")]
        assert "environment" in line
