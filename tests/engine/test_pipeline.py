"""From a POST to the sinks: one flow on Spark, from its start to its stop."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import orjson
import pytest

from penstock import faults
from penstock.flow.receipts import Receipts
from penstock.status import Status
from tests.cli.commands import penstock
from tests.engine.flows import (
    STARTS_S,
    THREE_SINKS,
    in_files,
    in_lines,
    in_topic,
    once_and_in_order,
    send,
    wait_settled,
    write_flow,
)
from tests.sinks.servers import HttpServer, Request
from tests.supervisor.running import Run, clean_environment, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


WITH_A_FUNCTION = THREE_SINKS.replace(
    "web: {connect: by_dest}", "web: {connect: own}\n  own: {connect: by_dest}"
).replace(
    "copy: {module: link.multiplexer}",
    "copy: {module: link.multiplexer}\n"
    "  own: {module: link.python, params: {function: 'beside_the_flow:same', mode: arrow}}\n"
    "  show: {module: sink.dumper, params: {out: STDOUT}}",
)
WITH_A_FUNCTION = WITH_A_FUNCTION.replace("[lines, files, again]", "[lines, files, again, show]")


def test_a_flow_from_start_to_stop(tmp_path: Path) -> None:
    flow, data = write_flow(tmp_path, WITH_A_FUNCTION), tmp_path / "data"
    # Found in the driver and in Spark's workers, though the folder is on nobody's path.
    (tmp_path / "beside_the_flow.py").write_text("def same(batch):\n    return batch\n")
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
        # All that is printed comes behind the line that it is ready, and none of it is among the log lines.
        assert run.process.stdout is not None
        printed = run.process.stdout.read().decode().splitlines()
        once_and_in_order(printed, {"till": 20, "late": 1})
        assert "till 3" not in run.log().splitlines()
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
    """The replayed one, and one more, by `run --once`. A second run, of an edited flow, repeats nothing."""
    sent = penstock(
        *("send", "drill.web", "by hand 0", "--meta", "dest=all", "--data-dir", str(data)), cwd=data
    )
    assert sent.code == 0, sent.err
    for edit in (keep_it, put_a_receiver_first):
        edit(flow)
        ran = penstock(
            "run", str(flow), "--once", "--data-dir", str(data), cwd=folder, timeout_s=STARTS_S
        )
        assert ran.code == 0, ran.err
        assert "odd 0" not in ran.out
        assert ran.out.splitlines().count("by hand 0") == (edit is keep_it)
        lines = in_lines(folder)
        assert lines.count("odd 0") == 1
        assert lines.count("by hand 0") == 1
        assert in_files(folder).count("by hand 0") == 1
        assert "odd 0" not in in_files(folder)
    assert (data / "engine" / "drill.early" / "decisions").exists(), "the query has a new name"


def keep_it(flow: Path) -> None:
    pass


def put_a_receiver_first(flow: Path) -> None:
    """It shares all that is below, so there is one query still, and it is called after this one."""
    early = 'components:\n  early: {module: receiver.tcp, params: {bind: "127.0.0.1:0"}}\n'
    text = flow.read_text().replace("components:\n", early)
    flow.write_text(text.replace("pipeline:\n", "pipeline:\n  early: {connect: by_dest}\n"))


WITH_BUFFER = (
    THREE_SINKS.replace(
        "pipeline:\n",
        "  pair: {module: link.multiplexer}\n"
        "  retry: {module: link.buffer, params: {max_retry: 3, backoff_min_s: 0.2, backoff_max_s: 0.4}}\n"
        '  far: {module: sink.http, params: {url: "http://127.0.0.1:PORT/"}}\n'
        "pipeline:\n"
        "  pair: {links: [lines, retry]}\n"
        "  retry: {connect: far}\n",
    )
).replace("one: lines}", "one: lines, pair: pair}")


class FarAway:
    """A server that takes nothing for now; of what it takes later, a repeat would be seen."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.taken: Counter[str] = Counter()
        self.is_back = threading.Event()
        self.server = HttpServer(self._answer)

    def _answer(self, request: Request) -> int | None:
        body = request.body.decode()
        self.asked[body] += 1
        if self.is_back.is_set():
            self.taken[body] += 1
            return 200
        if body == "pair 1" and self.asked[body] == 2:
            self.is_back.wait(STARTS_S)
            return None  # nobody knows whether it was taken
        return 503


def test_a_sink_that_is_down_holds_back_only_its_own_branch(tmp_path: Path) -> None:
    far = FarAway()
    text = WITH_BUFFER.replace("PORT", str(far.server.port))
    flow, data = write_flow(tmp_path, text), tmp_path / "data"
    blocked = tmp_path / "files"
    blocked.write_text("a file where the sink wants a folder")
    # While a park is drained, between decision and commit. The first that is decided there is what is given up.
    rule = {
        "point": "transaction.decided",
        "action": "kill",
        "match": {"of": "drill.web.drain.far"},
        "after": 1,
        "once": str(tmp_path / "struck"),
    }
    environment = clean_environment(**{faults.VARIABLE: orjson.dumps([rule]).decode()})
    with Run(flow, "--data-dir", str(data), engine=True, env=environment) as run:
        run.wait_ready()
        for seq in range(30):
            assert send(run, "till", seq)[0] == 202
        eventually_in(tmp_path, 30)
        receipts = Receipts(data)
        eventually(lambda: receipts.frontier("drill.web", 0) == 30, "the receipts")
        receipt = receipts.find("drill.web", 0, 5)
        assert receipt.status is Status.NEW
        assert set(receipt.branches) == {"files"}
        a_buffer_gives_up_after_its_retries(run, data, far)
        assert send(run, "pair", 1, dest="pair")[0] == 202
        eventually(lambda: far.asked["pair 1"] == 2, "a retry of what is parked")
        far.is_back.set()
        eventually((tmp_path / "struck").exists, "the engine is killed")
        blocked.unlink()  # they are held after a restart, too
        for seq in range(30, 60):
            assert send(run, "till", seq)[0] == 202
        wait_settled(data)
    once_and_in_order(in_lines(tmp_path), {"till": 60, "pair": 2})
    once_and_in_order(in_files(tmp_path), {"till": 60})
    once_and_in_order(in_topic(data, "drill.again"), {"till": 60})
    assert Receipts(data).find("drill.web", 0, 5).status is Status.DONE
    assert far.taken == {"pair 1": 1}
    assert Receipts(data).find("drill.web", 0, 31).status is Status.DONE
    far.server.close()


def a_buffer_gives_up_after_its_retries(run: Run, data: Path, far: FarAway) -> None:
    assert send(run, "pair", 0, dest="pair")[0] == 202
    receipts = Receipts(data)

    def ended() -> bool:
        there = receipts.frontier("drill.web", 0) == 31
        return there and receipts.find("drill.web", 0, 30).status is not Status.NEW

    eventually(ended, "the message is given up")
    receipt = receipts.find("drill.web", 0, 30)
    assert receipt.status is Status.PARTIAL
    assert receipt.branches["far"].status is Status.FAILED
    assert "503" in receipt.reason
    assert far.asked["pair 0"] == 1 + 3


def eventually_in(folder: Path, count: int) -> None:
    eventually(lambda: len(in_lines(folder)) == count, f"{count} lines beside the blocked sink")
