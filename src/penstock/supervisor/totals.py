"""The counters of all edge processes, summed so that they never fall.

Each process counts from zero when it starts. What a dead one had counted, as far as it had told, is
kept and added to what its successor counts. Gauges (connections, pending bytes) are only those of
the processes that live.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from penstock.edge.control import EngineStats, PartitionStats, PeerStats, WorkerStats

PEER_COUNTERS = ("in", "out", "err", "send", "recv", "recv_bytes", "refused")


@dataclass(slots=True)
class PeerTotals:
    counters: Counter[str] = field(default_factory=Counter)
    connections: int = 0


@dataclass(slots=True)
class PartitionTotals:
    end: int = 0
    pending_messages: int = 0
    pending_bytes: int = 0
    bytes_written: int = 0
    commits: int = 0
    fsync_seconds_sum: float = 0.0
    fsync_buckets: Counter[float] = field(default_factory=Counter)  # by upper bound, not cumulative


@dataclass(slots=True)
class Snapshot:
    peers: dict[str, PeerTotals]
    partitions: dict[str, PartitionTotals]  # by "topic/partition"
    rss_bytes: dict[str, int]  # by process
    engine: EngineStats | None = None  # None while it does not run


class Totals:
    def __init__(self) -> None:
        self._live: dict[str, WorkerStats] = {}
        self._dead_peers: dict[str, PeerTotals] = defaultdict(PeerTotals)
        self._dead_partitions: dict[str, PartitionTotals] = defaultdict(PartitionTotals)

    def update(self, process: str, stats: WorkerStats) -> None:
        """What a living process counted since it started; replaces what it said before."""
        self._live[process] = stats

    def retire(self, process: str) -> None:
        """The process is dead: keep its counters, forget its gauges."""
        stats = self._live.pop(process, None)
        if stats is None:
            return
        for name, peer in stats["peers"].items():
            _add_counters(self._dead_peers[name], peer)
        for name, partition in stats["partitions"].items():
            _add_partition(self._dead_partitions[name], partition)

    def snapshot(self) -> Snapshot:
        peers: dict[str, PeerTotals] = defaultdict(PeerTotals)
        partitions: dict[str, PartitionTotals] = defaultdict(PartitionTotals)
        for name, kept in self._dead_peers.items():
            peers[name].counters.update(kept.counters)
        for name, gone in self._dead_partitions.items():
            _merge(partitions[name], gone)
        for stats in self._live.values():
            for name, peer in stats["peers"].items():
                _add_counters(peers[name], peer)
                peers[name].connections += peer["connections"]
            for name, partition in stats["partitions"].items():
                _add_partition(partitions[name], partition)
                partitions[name].pending_messages += partition["pending_messages"]
                partitions[name].pending_bytes += partition["pending_bytes"]
        rss_bytes = {process: stats["rss_bytes"] for process, stats in self._live.items()}
        engine = next((one["engine"] for one in self._live.values() if "engine" in one), None)
        return Snapshot(dict(peers), dict(partitions), rss_bytes, engine)


def _add_counters(totals: PeerTotals, peer: PeerStats) -> None:
    for counter, value in peer.items():
        if counter in PEER_COUNTERS and isinstance(value, int):
            totals.counters[counter] += value


def _add_partition(totals: PartitionTotals, stats: PartitionStats) -> None:
    totals.end = max(totals.end, stats["end"])
    totals.bytes_written += stats["bytes_written"]
    totals.commits += stats["commits"]
    totals.fsync_seconds_sum += stats["fsync_seconds_sum"]
    for bound_s, count in stats["fsync_buckets"]:
        totals.fsync_buckets[float("inf") if bound_s is None else float(bound_s)] += count


def _merge(totals: PartitionTotals, other: PartitionTotals) -> None:
    totals.end = max(totals.end, other.end)
    totals.bytes_written += other.bytes_written
    totals.commits += other.commits
    totals.fsync_seconds_sum += other.fsync_seconds_sum
    totals.fsync_buckets.update(other.fsync_buckets)
