from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.cli.main import run_command
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import TopicConfig
from penstock.log.names import TopicName
from penstock.message import Batch
from tests.cli.commands import Result

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


@pytest.fixture
def here(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """A command in this process, which is quick: for those that only look and print."""

    def run(*arguments: str | Path) -> Result:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return run
