"""One transaction per batch: whatever is killed wherever, every sink has every message once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.errors import LogError
from penstock.flow.decisions import Decision, Decisions
from penstock.flow.receipts import Receipts
from penstock.status import Status
from tests.flow import drill
from tests.flow.folder_sink import FolderSink

MESSAGES = 60
POINTS = [
    "transaction.settled",
    "folder.prepared",
    "transaction.prepared",
    "decisions.written",
    "transaction.decided",
    "transaction.committing",
    "folder.renamed",
    "transaction.committed",
    "transaction.recorded",
    "drill.returned",
]


def expected(sink: str) -> list[str]:
    return [str(n) for n in range(MESSAGES) if drill.wanted(sink, n)]


def in_order(lines: list[str]) -> list[str]:
    return sorted(lines, key=int)


def check(folder: Path) -> None:
    for sink in ("a", "b", "c"):
        held = FolderSink(sink, folder / sink).held()
        assert in_order(held) == expected(sink), f"sink {sink}"
        for partition in (0, 1):  # each task's messages stay in order
            mine = [int(n) for n in held if int(n) % 2 == partition]
            assert mine == sorted(mine)
    receipts = Receipts(folder)
    for n in range(MESSAGES):
        status = Status.UNROUTABLE if n % 17 == 0 else Status.DONE
        assert receipts.find(drill.TOPIC, 0, n).status is status


def play(folder: Path, rules: list[dict[str, object]]) -> int:
    environment = {**os.environ, faults.VARIABLE: orjson.dumps(rules).decode()}
    program = [sys.executable, "-m", "tests.flow.drill", str(folder), str(MESSAGES)]
    return subprocess.run(program, env=environment).returncode


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_nothing_is_lost_or_doubled(tmp_path: Path, point: str) -> None:
    rules = [
        {"point": point, "action": "kill", "after": after, "once": str(tmp_path / f"once-{after}")}
        for after in (0, 3)
    ]
    codes = [play(tmp_path, rules) for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]
    check(tmp_path)


@pytest.mark.slow
def test_killed_at_random_many_times(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", time.time_ns() % 1_000_000))
    print(f"PENSTOCK_SEED={seed} replays this")
    chance = random.Random(seed)
    for round_ in range(12):
        folder = tmp_path / str(round_)
        folder.mkdir()
        rules = [
            {
                "point": chance.choice(POINTS),
                "action": "kill",
                "after": chance.randrange(8),
                "once": str(folder / f"once-{n}"),
            }
            for n in range(4)
        ]
        for _ in range(len(rules) + 1):
            if play(folder, rules) == 0:
                break
        check(folder)


def test_a_sink_that_is_down_is_parked_and_its_siblings_go_on(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "down").touch()
    drill.run(tmp_path, MESSAGES)
    assert in_order(FolderSink("a", tmp_path / "a").held()) == expected("a")
    assert FolderSink("b", tmp_path / "b").held() == []
    assert in_order(FolderSink("b-park", tmp_path / "b-park").held()) == expected("b")
    assert Receipts(tmp_path).find(drill.TOPIC, 0, 1).status is Status.NEW


def test_a_sink_that_goes_down_between_the_phases_is_owed_its_commit(tmp_path: Path) -> None:
    down = tmp_path / "b" / "down"
    faults.arm(faults.Rule("transaction.decided", action="raise", after=2, times=1))
    with pytest.raises(faults.Fault):
        drill.run(tmp_path, MESSAGES)
    down.touch()
    flow = drill.run(tmp_path, MESSAGES)  # comes back, and finds the sink gone
    assert set(flow.decisions.owed) == {"b"}
    flow.close()
    down.unlink()
    flow = drill.run(tmp_path, MESSAGES)
    assert flow.decisions.owed == {}
    sink, park = FolderSink("b", tmp_path / "b"), FolderSink("b-park", tmp_path / "b-park")
    assert in_order(sink.held() + park.held()) == expected("b")
    assert in_order(FolderSink("a", tmp_path / "a").held()) == expected("a")


def test_atomic_means_all_or_none(tmp_path: Path) -> None:
    down = tmp_path / "b" / "down"
    down.parent.mkdir()
    down.touch()
    done = threading.Thread(target=drill.run, args=(tmp_path, MESSAGES), kwargs={"atomic": True})
    done.start()
    time.sleep(0.5)
    assert FolderSink("a", tmp_path / "a").held() == []
    assert FolderSink("c", tmp_path / "c").held() == []
    down.unlink()
    done.join(60)
    check(tmp_path)


def test_a_torn_decision_was_never_made(tmp_path: Path) -> None:
    log = Decisions(tmp_path)
    log.decide(Decision(0, {"a": [b"x"]}, {("t", 0): 5}))
    log.finished(0)
    log.close()
    whole = log.path.read_bytes()
    for cut in range(len(whole)):
        log.path.write_bytes(whole[:cut])
        again = Decisions(tmp_path)
        first_line = whole.index(b"\n") + 1
        assert again.last == (0 if cut >= first_line else -1)
        again.close()


def test_a_damaged_decision_stops_everything_and_is_named(tmp_path: Path) -> None:
    log = Decisions(tmp_path)
    for number in range(2):
        log.decide(Decision(number, {"a": [b"x"]}))
        log.finished(number)
    log.close()
    data = bytearray(log.path.read_bytes())
    data[20] ^= 1
    log.path.write_bytes(bytes(data))
    with pytest.raises(LogError, match="line 1"):
        Decisions(tmp_path)


def test_a_long_log_is_replaced_by_what_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.flow.decisions.DECISIONS_BYTES", 2000)
    log = Decisions(tmp_path)
    for number in range(100):
        log.decide(Decision(number, {"a": [b"token"], "b": [b"other"]}, {("t", 0): number + 1}))
        log.committed(number, "a")
        if number != 7:
            log.committed(number, "b")
        log.finished(number)
    log.close()
    assert log.path.stat().st_size < 4000
    again = Decisions(tmp_path)
    assert (again.last, again.frontiers) == (99, {("t", 0): 100})
    assert again.owed == {"b": {7: [b"other"]}}


@pytest.fixture(autouse=True)
def _disarmed() -> object:
    yield
    faults.arm()
