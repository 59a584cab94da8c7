"""From a POST to the sinks: one flow on Spark, from its start to its stop."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.flow.receipts import Receipts
from penstock.status import Status
from tests.cli.commands import penstock
from tests.engine.flows import (
    STARTS_S,
    in_files,
    in_lines,
    in_topic,
    once_and_in_order,
    send,
    wait_settled,
    write_flow,
)
from tests.supervisor.running import Run, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_flow_from_start_to_stop(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path), tmp_path / "data"
    with Run(flow, "--data-dir", str(data), engine=True) as run:
        run.wait_ready()
        for seq in range(20):
            assert send(run, "till", seq)[0] == 202
        assert send(run, "till", 3)[0] == 202  # a repeat
        assert send(run, "odd", 0, dest="nowhere")[0] == 202
        assert send(run, "half", 0, dest="one")[0] == 202
        wait_settled(data)
        status, metrics = run.call("GET", "/metrics")
        assert status == 200
        assert 'penstock_flow_lag_messages{flow="drill"} 0.0' in metrics
        everything_is_there(tmp_path, data)
        # What is accepted just before the stop is carried through by it.
        assert send(run, "late", 0)[0] == 202
        assert run.stop() == 0
    assert "late 0" in in_lines(tmp_path)
    the_unroutable_one_is_a_dead_letter_and_can_be_replayed(flow, data)
    what_is_in_the_topics_is_carried_through_once(tmp_path, flow, data)


def everything_is_there(folder: Path, data: Path) -> None:
    once_and_in_order(in_lines(folder), {"till": 20, "half": 1})
    once_and_in_order(in_files(folder), {"till": 20})
    once_and_in_order(in_topic(data, "drill.again"), {"till": 20})
    receipts = Receipts(data)
    statuses = [receipts.find("drill.web", 0, offset).status for offset in range(22)]
    assert statuses == [*[Status.DONE] * 20, Status.UNROUTABLE, Status.DONE]


def the_unroutable_one_is_a_dead_letter_and_can_be_replayed(flow: Path, data: Path) -> None:
    listed = penstock("deadletter", "list", "drill", "--data-dir", str(data), cwd=data)
    assert listed.out.split("\t")[:2] == ["0", "unroutable"]
    assert "no route for dest=nowhere" in listed.out
    flow.write_text(flow.read_text().replace("one: lines}", "one: lines, nowhere: lines}"))
    replayed = penstock("deadletter", "replay", "drill", "0", "--data-dir", str(data), cwd=data)
    assert replayed.out == "replayed 1 message\n"
    assert penstock("deadletter", "list", "drill", "--data-dir", str(data), cwd=data).out == ""


def what_is_in_the_topics_is_carried_through_once(folder: Path, flow: Path, data: Path) -> None:
    """The replayed one, and one more, by `run --once`; a second run finds nothing to do."""
    sent = penstock(
        *("send", "drill.web", "by hand 0", "--meta", "dest=all", "--data-dir", str(data)), cwd=data
    )
    assert sent.code == 0, sent.err
    for _ in range(2):
        ran = penstock(
            "run", str(flow), "--once", "--data-dir", str(data), cwd=folder, timeout_s=STARTS_S
        )
        assert ran.code == 0, ran.err
        lines = in_lines(folder)
        assert lines.count("odd 0") == 1
        assert lines.count("by hand 0") == 1
        assert in_files(folder).count("by hand 0") == 1
        assert "odd 0" not in in_files(folder)


def test_a_sink_that_is_down_holds_back_only_its_own_branch(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path), tmp_path / "data"
    blocked = tmp_path / "files"
    blocked.write_text("a file where the sink wants a folder")
    with Run(flow, "--data-dir", str(data), engine=True) as run:
        run.wait_ready()
        for seq in range(30):
            assert send(run, "till", seq)[0] == 202
        eventually_in(tmp_path, 30)
        receipts = Receipts(data)
        eventually(lambda: receipts.frontier("drill.web", 0) == 30, "the receipts")
        receipt = receipts.find("drill.web", 0, 5)
        assert receipt.status is Status.NEW
        assert set(receipt.branches) == {"files"}
        os.kill(run.pid("engine"), signal.SIGKILL)  # it is held after a restart, too
        blocked.unlink()
        for seq in range(30, 60):
            assert send(run, "till", seq)[0] == 202
        wait_settled(data)
    once_and_in_order(in_lines(tmp_path), {"till": 60})
    once_and_in_order(in_files(tmp_path), {"till": 60})
    once_and_in_order(in_topic(data, "drill.again"), {"till": 60})
    assert Receipts(data).find("drill.web", 0, 5).status is Status.DONE


def eventually_in(folder: Path, count: int) -> None:
    eventually(lambda: len(in_lines(folder)) == count, f"{count} lines beside the blocked sink")
