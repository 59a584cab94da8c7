"""A keeper that is killed while it writes a segment anew: nothing is lost, and the next one does it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import faults
from penstock.log import Retention, TopicConfig
from penstock.log.embedded import EmbeddedLog
from tests.log.contract import TOPIC, batch, payloads

KEEP = (
    "import sys; from penstock.log import TopicName; from penstock.log.embedded import EmbeddedLog; "
    "EmbeddedLog(sys.argv[1]).maintain(TopicName.parse('orders.web'))"
)
SEGMENTS, MESSAGES, IN_ONE = 2, 20_400, 300


def maintain(folder: Path, *rules: dict[str, object]) -> int:
    env = {**os.environ, faults.VARIABLE: json.dumps(rules)}
    return subprocess.run([sys.executable, "-c", KEEP, str(folder)], env=env).returncode


def litter(folder: Path) -> list[Path]:
    return list(folder.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("compression", "rule"),
    [
        ("none", {"point": "keeper.rewriting"}),  # the first frame is written, and not synced
        ("zstd", {"point": "keeper.rewriting", "after": 1}),
        ("none", {"point": "keeper.rewriting", "after": 2}),  # in the second segment
        ("zstd", {"point": "keeper.rewritten", "after": 1}),
        ("none", {"point": "keeper.renamed"}),
    ],
)
def test_a_keeper_killed_in_the_middle_of_a_segment_harms_nothing(
    tmp_path: Path, compression: str, rule: dict[str, object]
) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig(compression=compression))  # type: ignore[arg-type]
    expected = []
    for segment in range(SEGMENTS):
        writer = log.writer(TOPIC, 0)
        for start in range(0, MESSAGES, IN_ONE):
            first = segment * MESSAGES + start
            some = [b"%d" % number for number in range(first, first + IN_ONE)]
            writer.append([batch(*some, stream="s", seq=first)])
            expected += some
        writer.seal()
        writer.close()
    early = log.reader(TOPIC, 0)  # it has the old files mapped
    beginning = payloads(early, max_rows=10)

    assert maintain(tmp_path, {**rule, "action": "kill"}) == -signal.SIGKILL
    assert payloads(log.reader(TOPIC, 0)) == expected
    writer = log.writer(TOPIC, 0)
    assert writer.append([batch(b"0", stream="s")])[0].repeats == 1, "numbers are known"
    writer.close()

    assert maintain(tmp_path) == 0
    assert log.describe(TOPIC).partitions[0].packed_segments == SEGMENTS
    assert log.verify(TOPIC).corrupt == ()
    assert payloads(log.reader(TOPIC, 0)) == expected
    assert payloads(early, max_rows=10) == beginning
    assert litter(tmp_path) == []


def test_what_a_killed_keeper_left_goes_with_its_segment(tmp_path: Path) -> None:
    log = EmbeddedLog(tmp_path)
    log.create(TOPIC, TopicConfig())
    writer = log.writer(TOPIC, 0)
    for number in range(200):
        writer.append([batch(b"%d" % number, seq=number)])
    writer.seal()
    writer.append([batch(b"last", stream="~d")])
    writer.close()
    assert maintain(tmp_path, {"point": "keeper.rewriting", "action": "kill"}) == -signal.SIGKILL
    assert len(litter(tmp_path)) == 1
    # The disk is damaged meanwhile, so that it will never be packed.
    [segment] = tmp_path.rglob("00000000000000000000.seg")
    with segment.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff" * 8)
    log.create(TOPIC, TopicConfig(retention=Retention(size_bytes=1)))
    assert maintain(tmp_path) == 0
    assert payloads(log.reader(TOPIC, 0)) == [b"last"]
    assert litter(tmp_path) == []
