"""Sums over processes that come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.edge.control import WorkerStats
from penstock.supervisor.totals import Totals


def stats(recv: int, *, connections: int = 0, pending: int = 0, end: int = 0) -> WorkerStats:
    return {
        "peers": {
            "web": {
                "in": 0,
                "out": recv,
                "err": 0,
                "send": 0,
                "recv": recv,
                "recv_bytes": 10 * recv,
                "connections": connections,
                "refused": 0,
            }
        },
        "partitions": {
            "orders.web/0": {
                "end": end,
                "pending_messages": pending,
                "pending_bytes": 10 * pending,
                "bytes_written": 100 * recv,
                "commits": recv,
                "fsync_seconds_sum": 0.5 * recv,
                "fsync_buckets": [(0.001, recv), (None, 1)],
            }
        },
        "rss_bytes": 1000,
    }


def test_processes_are_summed() -> None:
    totals = Totals()
    totals.update("edge-0", stats(3, connections=2))
    totals.update("edge-1", stats(4, connections=5))
    seen = totals.snapshot()
    assert seen.peers["web"].counters["recv"] == 7
    assert seen.peers["web"].connections == 7
    assert seen.rss_bytes == {"edge-0": 1000, "edge-1": 1000}


def test_a_later_report_replaces_the_earlier_one() -> None:
    totals = Totals()
    totals.update("edge-0", stats(3))
    totals.update("edge-0", stats(5))
    assert totals.snapshot().peers["web"].counters["recv"] == 5


def test_what_a_dead_process_counted_is_kept_and_its_gauges_are_not() -> None:
    totals = Totals()
    totals.update("edge-0", stats(10, connections=3, pending=4, end=10))
    totals.retire("edge-0")
    totals.update("edge-0", stats(1, end=11))
    seen = totals.snapshot()
    assert seen.peers["web"].counters["recv"] == 11
    assert seen.peers["web"].connections == 0
    partition = seen.partitions["orders.web/0"]
    assert (partition.end, partition.commits, partition.pending_bytes) == (11, 11, 0)
    assert partition.fsync_buckets == {0.001: 11, float("inf"): 2}


def test_retiring_an_unknown_process_changes_nothing() -> None:
    totals = Totals()
    totals.retire("edge-9")
    assert totals.snapshot().peers == {}


@given(st.lists(st.tuples(st.sampled_from(["edge-0", "edge-1"]), st.integers(0, 5), st.booleans())))
def test_no_counter_ever_falls(steps: list[tuple[str, int, bool]]) -> None:
    totals = Totals()
    counted: dict[str, int] = {}
    before = 0
    for process, more, dies in steps:
        if dies:
            totals.retire(process)
            counted.pop(process, None)
        else:
            counted[process] = counted.get(process, 0) + more
            totals.update(process, stats(counted[process]))
        peers = totals.snapshot().peers
        now = peers["web"].counters["recv"] if peers else 0
        assert now >= before
        before = now
