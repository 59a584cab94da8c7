"""`penstock run --master`: a flow on a real standalone cluster, a master and two workers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from penstock.flow.receipts import Receipts
from penstock.status import Status
from tests.engine.flows import (
    THREE_SINKS,
    in_files,
    in_lines,
    in_topic,
    once_and_in_order,
    send,
    wait_settled,
    write_flow,
)
from tests.spark.cluster import Cluster
from tests.supervisor.running import Run, eventually

ON_A_CLUSTER = THREE_SINKS.replace(
    "stop_timeout_s: 60}",
    "stop_timeout_s: 60, log: {partitions: 2}, engine: {conf: {spark.executor.memory: 512m, "
    "spark.driver.host: 127.0.0.1}}}",
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flow_on_a_cluster_is_exactly_once_though_an_executor_is_killed(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path, ON_A_CLUSTER), tmp_path / "data"
    streams = {"till": 40, "door": 40, "gate": 40}  # over both partitions, and so both workers
    with (
        Cluster(tmp_path, workers=2) as cluster,
        Run(flow, "--data-dir", str(data), "--master", cluster.url, engine=True) as run,
    ):
        run.wait_ready()
        executors = eventually(lambda: len(found := cluster.executors()) == 2 and found, "both")
        for seq in range(40):
            for stream in streams:
                assert send(run, stream, seq)[0] == 202
            if seq == 20:
                os.kill(executors[0], signal.SIGKILL)
        assert send(run, "odd", 0, dest="nowhere")[0] == 202
        wait_settled(data)
        assert set(cluster.executors()) - set(executors), "another one took its place"
        assert run.stop() == 0
    for found in (in_lines(tmp_path), in_files(tmp_path), in_topic(data, "drill.again")):
        once_and_in_order(found, streams)
    receipts = Receipts(data)
    assert sum(receipts.frontiers().values()) >= 121
    assert receipts.counts() == {Status.UNROUTABLE: 1}
