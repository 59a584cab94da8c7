"""The screen of `penstock run`: what it draws of a snapshot."""

from __future__ import annotations

import io
import time
from collections import Counter
from pathlib import Path

from rich.console import Console

from penstock.cli.view import View
from penstock.edge.control import EngineStats
from penstock.flow.receipt import Receipt
from penstock.message import EventId
from penstock.supervisor.child import ChildState
from penstock.supervisor.overview import ProcessView
from penstock.supervisor.totals import PeerTotals, Snapshot

READY = "ready web=127.0.0.1:7071 admin=127.0.0.1:8080"
ENGINE: EngineStats = {
    "lag": 1234,
    "done": 98765,
    "sinks": {
        "out": {"valve": "open", "parked": 0, "error": None},
        "far": {"valve": "held", "parked": 4321, "error": "far: [Errno 111]\nrefused"},
    },
    "pieces": {
        "web": {"transactions": 9, "last_batch_s": 0.1, "statuses": {"invalid": 3, "new": 7}},
        "tcp": {"transactions": 2, "last_batch_s": 0.1, "statuses": {"invalid": 2, "failed": 1}},
    },
}


class Flow:
    """What is shown of a flow that does not run."""

    flow = "orders"
    why: str | None = None
    state = ChildState.READY

    def not_ready(self) -> str | None:
        return self.why

    def processes(self) -> list[ProcessView]:
        return [ProcessView("engine", self.state, 7, 0, time.time(), None)]

    def find_receipt(self, event: EventId, at: tuple[int, int] | None) -> Receipt:
        raise NotImplementedError

    async def collect(self) -> Snapshot:
        raise NotImplementedError


def peer(connections: int = 0, **counters: int) -> PeerTotals:
    return PeerTotals(Counter(counters), connections)


def drawn(view: View, snapshot: Snapshot, width: int = 110) -> list[str]:
    shown = io.StringIO()
    Console(width=width, file=shown).print(view._screen(snapshot))
    return shown.getvalue().splitlines()


def test_the_screen_says_what_was_done_what_was_not_and_why(tmp_path: Path) -> None:
    log = tmp_path / "penstock.log"
    log.write_bytes(b"old\n" * 20 + b"the last \x1b[31mline\n")
    view = View(Flow(), READY, log)
    peers = {"web": peer(5, out=2000), "out": peer(send=1500, err=1), "far": peer(send=40, err=12)}
    lines = drawn(view, Snapshot(peers, {}, {}, ENGINE))
    assert lines[0] == "orders   running   lag 1,234   98,765 done, 5 invalid, 1 failed"
    assert lines[1] == "web=127.0.0.1:7071 admin=127.0.0.1:8080"
    rows = {line.split()[0]: line.split()[1:] for line in lines[2:6]}
    assert rows["component"][-2:] == ["last", "error"]
    assert rows["web"] == ["2,000", "0", "0", "5", "connected"]
    assert rows["out"] == ["1,500", "0", "1", "open", "0"]
    words = ["40", "0", "12", "held", "4,321", "far:", "[Errno", "111]\\nrefused"]
    assert rows["far"] == words, "an error is one line, and its brackets are no markup"
    assert [line for line in lines if "last" in line][-1] == "the last \\x1b[31mline"
    assert sum(line == "old" for line in lines) == 7
    assert str(log) in "".join(lines[-2:]).replace("\n", "")


def test_a_flow_that_is_down_says_so(tmp_path: Path) -> None:
    flow = Flow()
    view = View(flow, READY, tmp_path / "none")
    assert drawn(view, Snapshot({}, {}, {}))[0] == "orders   running   no pipeline"
    flow.state = ChildState.WAITING
    assert drawn(view, Snapshot({}, {}, {}))[0].startswith("orders   degraded: engine down")
    flow.why = "the flow is starting"
    assert drawn(view, Snapshot({}, {}, {}))[0].startswith(
        "orders   not ready: the flow is starting"
    )


def test_rates_are_of_the_time_between_two_screens(tmp_path: Path) -> None:
    view = View(Flow(), READY, tmp_path / "none")
    drawn(view, Snapshot({"web": peer(out=100)}, {}, {}))
    assert view._before is not None
    view._before = (view._before[0] - 1_000_000.0, view._before[1])  # long ago
    [row] = [
        line
        for line in drawn(view, Snapshot({"web": peer(out=5_000_100)}, {}, {}))
        if line.startswith("web ")
    ]
    assert row.split()[:3] == ["web", "5,000,100", "5"]
