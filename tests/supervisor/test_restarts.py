"""What happens when processes of a running flow die."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.supervisor.running import Run, eventually, metric

pytestmark = pytest.mark.slow


def _restarted(run: Run, name: str, old_pid: int) -> Any:
    def look() -> Any:
        process = run.processes()[name]
        return process if process["state"] == "ready" and process["pid"] != old_pid else None

    return eventually(look, f"{name} is ready again")


def _received(run: Run) -> float:
    status, text = run.call("GET", "/metrics")
    assert status == 200
    return metric(text, "penstock_peer_recv_total", peer="web")


def test_a_killed_edge_process_is_started_again_on_the_same_port(flow: Path) -> None:
    with Run(flow) as run:
        run.wait_ready()
        for number in range(5):
            run.post(b"before %d" % number)
        before = _received(run)
        assert before == 5
        old = run.pid("edge-0")
        os.kill(old, signal.SIGKILL)

        _, problem = eventually(
            lambda: (answer := run.call("GET", "/ready"))[0] == 503 and answer, "/ready says no"
        )
        assert "edge-0" in problem["detail"]
        process = _restarted(run, "edge-0", old)
        assert process["restarts"] == 1
        assert process["last_error"] == "killed by SIGKILL"
        assert run.call("GET", "/ready")[0] == 200

        # What the dead one had counted is not forgotten, and counting goes on.
        assert _received(run) == before
        run.post(b"after")
        assert _received(run) == before + 1
        _, text = run.call("GET", "/metrics")
        assert metric(text, "penstock_process_restarts_total", process="edge-0") == 1
        assert metric(text, "penstock_process_up", process="edge-0") == 1
        assert metric(text, "penstock_topic_end_offset", topic="orders.web") == 6
        assert "killed by SIGKILL" in run.log()
        assert run.stop() == 0


def test_one_of_two_edge_processes_dies_and_the_other_goes_on(flow: Path) -> None:
    with Run(flow, "--maxprocs", "2") as run:
        run.wait_ready()
        old, other = run.pid("edge-0"), run.pid("edge-1")
        os.kill(old, signal.SIGKILL)
        _restarted(run, "edge-0", old)
        assert run.pid("edge-1") == other
        assert run.processes()["edge-1"]["restarts"] == 0
        for _ in range(20):
            run.post(b"x")
        assert _received(run) == 20
        assert run.stop() == 0


def test_a_killed_keeper_is_started_again_and_nobody_notices(flow: Path) -> None:
    with Run(flow) as run:
        old = run.wait_ready().pid("keeper")
        os.kill(old, signal.SIGKILL)
        assert run.call("GET", "/ready")[0] == 200
        run.post(b"x")
        assert _restarted(run, "keeper", old)["restarts"] == 1
        assert run.stop() == 0


def test_a_process_that_hangs_does_not_hold_up_the_metrics(flow: Path) -> None:
    with Run(flow) as run:
        run.wait_ready().post(b"x")
        assert _received(run) == 1
        edge = run.pid("edge-0")
        os.kill(edge, signal.SIGSTOP)
        assert _received(run) == 1  # the last known
        os.kill(edge, signal.SIGCONT)
        run.post(b"y")
        assert _received(run) == 2
        assert run.stop() == 0
