"""`/metrics`: the counters of all processes in Prometheus's text format.

Names are part of the interface. Everything is summed over the edge processes; a process that was
started again does not make a counter fall (see `penstock.supervisor.totals`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from penstock.supervisor.overview import ProcessView
from penstock.supervisor.totals import PartitionTotals, Snapshot

_PEER_HELP = {
    "in": "Messages that went from the flow to the peer.",
    "out": "Messages that went from the peer to the flow.",
    "err": "Messages that the peer could not take or deliver.",
    "send": "Messages that the peer sent to the outside.",
    "recv": "Messages that the peer received from the outside.",
    "recv_bytes": "Bytes that the peer received from the outside.",
    "refused": "Requests, connections and datagrams turned away at a limit.",
}


class FlowCollector(Collector):
    """One look at a running flow, as metric families."""

    def __init__(self, flow: str, processes: Sequence[ProcessView], snapshot: Snapshot) -> None:
        self._flow = flow
        self._processes = processes
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        yield from self._peers()
        yield from self._partitions()
        yield self._fsync()
        yield from self._engine()
        yield from self._health()

    def _peers(self) -> Iterator[Metric]:
        for counter, text in _PEER_HELP.items():
            family = CounterMetricFamily(f"penstock_peer_{counter}", text, labels=["flow", "peer"])
            for peer, totals in sorted(self._snapshot.peers.items()):
                family.add_metric([self._flow, peer], totals.counters[counter])
            yield family
        connections = GaugeMetricFamily(
            "penstock_peer_connections", "Open connections.", labels=["flow", "peer"]
        )
        for peer, totals in sorted(self._snapshot.peers.items()):
            connections.add_metric([self._flow, peer], totals.connections)
        yield connections

    def _partitions(self) -> Iterator[Metric]:
        labels = ["flow", "topic", "partition"]
        written = CounterMetricFamily(
            "penstock_log_bytes", "Bytes written to the log.", labels=labels
        )
        commits = CounterMetricFamily(
            "penstock_log_commits", "Commits (one fsync each).", labels=labels
        )
        pending = GaugeMetricFamily(
            "penstock_log_pending_bytes",
            "Memory of what is accepted and not yet durable.",
            labels=labels,
        )
        lag = GaugeMetricFamily(
            "penstock_log_lag_messages", "Messages accepted and not yet durable.", labels=labels
        )
        end = GaugeMetricFamily(
            "penstock_topic_end_offset", "The offset of the next message.", labels=labels
        )
        for name, totals in sorted(self._snapshot.partitions.items()):
            topic, _, partition = name.rpartition("/")
            values = [self._flow, topic, partition]
            written.add_metric(values, totals.bytes_written)
            commits.add_metric(values, totals.commits)
            pending.add_metric(values, totals.pending_bytes)
            lag.add_metric(values, totals.pending_messages)
            end.add_metric(values, totals.end)
        yield from (written, commits, pending, lag, end)

    def _fsync(self) -> Metric:
        by_topic: dict[str, list[PartitionTotals]] = defaultdict(list)
        for name, totals in sorted(self._snapshot.partitions.items()):
            by_topic[name.rpartition("/")[0]].append(totals)
        family = HistogramMetricFamily(
            "penstock_log_fsync_seconds", "How long an fsync took.", labels=["flow", "topic"]
        )
        for topic, partitions in by_topic.items():
            buckets: Counter[float] = Counter()
            for totals in partitions:
                buckets.update(totals.fsync_buckets)
            family.add_metric(
                [self._flow, topic],
                _cumulative(buckets),
                sum(totals.fsync_seconds_sum for totals in partitions),
            )
        return family

    def _engine(self) -> Iterator[Metric]:
        engine = self._snapshot.engine
        if engine is None:
            return
        lag = GaugeMetricFamily(
            "penstock_flow_lag_messages", "Messages not settled yet.", labels=["flow"]
        )
        lag.add_metric([self._flow], engine["lag"])
        parked = GaugeMetricFamily(
            "penstock_sink_parked_messages",
            "Messages that wait for a sink.",
            labels=["flow", "sink"],
        )
        valve = GaugeMetricFamily(
            "penstock_sink_open", "1 if data may flow to the sink.", labels=["flow", "sink"]
        )
        for name, sink in sorted(engine["sinks"].items()):
            parked.add_metric([self._flow, name], sink["parked"])
            valve.add_metric([self._flow, name], int(sink["valve"] == "open"))
        labels = ["flow", "piece"]
        commits = CounterMetricFamily(
            "penstock_flow_transactions", "Micro-batches committed.", labels=labels
        )
        took = GaugeMetricFamily(
            "penstock_flow_batch_seconds", "How long the last micro-batch took.", labels=labels
        )
        ended = CounterMetricFamily(
            "penstock_flow_exceptions",
            "Messages that did not end in done, and those that were parked (new).",
            labels=["flow", "piece", "status"],
        )
        for name, piece in sorted(engine["pieces"].items()):
            commits.add_metric([self._flow, name], piece["transactions"])
            took.add_metric([self._flow, name], piece["last_batch_s"])
            for status, count in sorted(piece["statuses"].items()):
                ended.add_metric([self._flow, name, status], count)
        yield from (lag, parked, valve, commits, took, ended)

    def _health(self) -> Iterator[Metric]:
        labels = ["flow", "process"]
        up = GaugeMetricFamily("penstock_process_up", "1 if the process is ready.", labels=labels)
        restarts = CounterMetricFamily(
            "penstock_process_restarts", "Times that the process was started again.", labels=labels
        )
        rss = GaugeMetricFamily(
            "penstock_process_resident_memory_bytes", "Memory in use.", labels=labels
        )
        for process in self._processes:
            up.add_metric([self._flow, process.name], int(process.up))
            restarts.add_metric([self._flow, process.name], process.restarts)
        for name, size_bytes in sorted(self._snapshot.rss_bytes.items()):
            rss.add_metric([self._flow, name], size_bytes)
        yield from (up, restarts, rss)


def _cumulative(buckets: Counter[float]) -> list[tuple[str, float]]:
    """As Prometheus wants them: each bucket with all below it, the last without a bound."""
    total = 0
    cumulative: list[tuple[str, float]] = []
    for bound_s in sorted({*buckets, float("inf")}):
        total += buckets[bound_s]
        cumulative.append(("+Inf" if bound_s == float("inf") else repr(bound_s), total))
    return cumulative


def exposition(flow: str, processes: Sequence[ProcessView], snapshot: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(FlowCollector(flow, processes, snapshot))
    return generate_latest(registry)
