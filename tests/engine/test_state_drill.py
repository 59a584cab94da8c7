"""A link with state behind a branch, and the engine killed where it, the state or the cut has a part."""

from __future__ import annotations

import time
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from tests.engine.drilling import Senders
from tests.engine.flows import in_lines, in_topic, once_and_in_order, wait_settled, write_flow
from tests.supervisor.running import Run, clean_environment, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WINDOWS = """
name: drill
system: {admin: {bind: "127.0.0.1:0"}, stop_timeout_s: 60}
components:
  web: {module: receiver.http, codec: string, params: {bind: "127.0.0.1:0"}}
  lines: {module: sink.dumper, params: {out: "FOLDER/lines"}}
  sevens: {module: link.window, params: {count: 7, time_s: 3, per: stream}}
  again: {module: sink.topic, params: {topic: drill.again}}
pipeline:
  web: {links: [lines, sevens]}
  sevens: {connect: again}
"""
STEPS = [
    ("state.synced", None, None),
    ("transaction.decided", "of", "drill.sevens"),
    ("engine.returning", "piece", "sevens"),
    ("transaction.committed", "of", "drill.web"),
]


def gathered(data: Path) -> list[str]:
    """What the windows hold, in the order in which they came out."""
    found = [orjson.loads(text) for text in in_topic(data, "drill.again")]
    return [value for window in found for value in window["values"]]


def test_every_message_is_in_one_window_whatever_is_killed(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path, WINDOWS), tmp_path / "data"
    rules = [
        {
            "point": point,
            "action": "kill",
            "after": 1,
            "once": str(tmp_path / f"struck.{point}"),
            "match": {} if name is None else {name: value},
        }
        for point, name, value in STEPS
    ]
    environment = clean_environment(**{faults.VARIABLE: orjson.dumps(rules).decode()})
    with Run(flow, "--data-dir", str(data), engine=True, env=environment) as run:
        run.wait_ready()
        senders = Senders(run)
        try:
            deadline = time.monotonic() + 600
            while len(list(tmp_path.glob("struck.*"))) < len(STEPS):
                assert time.monotonic() < deadline, sorted(tmp_path.glob("struck.*"))
                time.sleep(0.2)
        finally:
            senders.stop()
        wait_settled(data)
        # The last windows are not full: they end because time goes on.
        total = sum(senders.sent.values())
        eventually(lambda: len(gathered(data)) >= total, "the last windows")
        once_and_in_order(gathered(data), senders.sent)
        once_and_in_order(in_lines(tmp_path), senders.sent)
        assert Receipts(data).counts() == {}
        assert run.processes()["engine"]["restarts"] >= len(STEPS)
        assert run.stop() == 0, run.log()[-4000:]
