from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import TopicConfig
from penstock.log.names import TopicName
from penstock.message import Batch

ORDERS = TopicName("default", "orders")
START_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
SECOND_US = 1_000_000


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    """An empty log where commands look for it by default."""
    (tmp_path / ".penstock").mkdir(mode=0o700)
    return EmbeddedLog(tmp_path / ".penstock")


@pytest.fixture
def orders(log: EmbeddedLog) -> EmbeddedLog:
    """A topic of two partitions: ten messages, one a second, even ones in partition 0."""
    log.create(ORDERS, TopicConfig(partitions=2))
    for partition in (0, 1):
        writer = log.writer(ORDERS, partition)
        for number in range(partition, 10, 2):
            writer.append(
                [
                    Batch.of(
                        "web",
                        f"~conn{partition}",
                        number // 2,
                        [b"message %d" % number],
                        meta={"n": str(number)},
                        keys=[b"k%d" % number],
                        time_us=START_US + number * SECOND_US,
                    )
                ]
            )
        writer.close()
    return log
