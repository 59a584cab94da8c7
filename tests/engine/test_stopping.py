"""A stop that comes while a batch begins: the batch is carried through, and the flow stops."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock import faults
from penstock.engine.running import Engine
from penstock.flow.receipts import Receipts
from penstock.log import TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.message import Batch
from penstock.status import Status
from tests.config.files import flow_of
from tests.supervisor.running import WAIT_S, eventually

FLOW = """
name: t
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.topic, params: {topic: t.out}}
pipeline: {web: {connect: out}}
"""


def test_a_stop_does_not_wait_for_a_batch_that_waits_for_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    flow = flow_of(FLOW, path=tmp_path / "t.yaml")
    log = EmbeddedLog(flow.data_dir)
    log.create(TopicName.parse("t.web"), TopicConfig())
    gate = tmp_path / "gate"
    faults.arm(faults.Rule("engine.batch", action="pause", gate=str(gate)))
    engine = Engine(flow, lambda *_: None, spark=spark)
    try:
        engine.start()
        receipts = Receipts(flow.data_dir)
        with log.appender(TopicName.parse("t.web"), 0) as appender:
            # Spark may begin with a batch of nothing, which is not the one that is meant.
            appender.append([Batch.of("web", "s", 0, [b"x"])])
            eventually(lambda: receipts.frontier("t.web", 0) == 1, "the first batch")
            gate.touch()
            appender.append([Batch.of("web", "s", 1, [b"y"])])
        eventually(faults.waiting_at(gate).exists, "a batch begins")
        engine.abandon()
        stop = threading.Thread(target=engine.stop, daemon=True)
        stop.start()
        time.sleep(0.5)  # so that it has come as far as it can
        gate.unlink()
        stop.join(WAIT_S)
        assert not stop.is_alive()
    finally:
        faults.arm()
        gate.unlink(missing_ok=True)
    assert receipts.find("t.web", 0, 1).status is Status.DONE
