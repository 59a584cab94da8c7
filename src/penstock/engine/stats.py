"""What an engine tells of its pieces and sinks: how far behind they are, and what they have done."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from penstock.engine.piece import RunningPiece
from penstock.flow.drain import Drain
from penstock.flow.holds import SinkHolds
from penstock.log.interface import Log
from penstock.log.names import TopicName


def messages_behind(log: Log, pieces: Iterable[RunningPiece], *, internal: bool) -> int:
    """Not settled yet, in the topics that these pieces read; or only in those between them."""
    behind = 0
    for running in pieces:
        settled = running.coordinator.decisions.frontiers
        for source in running.piece.sources:
            if internal and not source.internal:
                continue
            for part in log.describe(TopicName.parse(source.topic)).partitions:
                behind += max(0, part.end - settled.get((source.topic, part.partition), 0))
    return behind


def sink_stats(
    pieces: Iterable[RunningPiece], drains: Mapping[str, tuple[SinkHolds, Drain]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """By sink: what it counts as a peer, and how it is."""
    peers: dict[str, Any] = {}
    sinks: dict[str, Any] = {}
    for running in pieces:
        totals = running.coordinator.totals
        for sink in running.piece.components:
            if sink not in running.coordinator.sinks:
                continue
            holds, drain = drains.get(f"{running.piece.name}/{sink}", (None, None))
            rows = totals.rows.get(sink, 0)
            peers[sink] = {
                "in": rows,
                "out": 0,
                "err": totals.errors.get(sink, 0),
                "send": rows,
                "recv": 0,
                "recv_bytes": 0,
                "connections": 0,
                "refused": 0,
            }
            sinks[sink] = {
                "valve": "open" if holds is None else holds.valve(sink),
                "parked": 0 if drain is None else drain.parked,
                "error": totals.last_error.get(sink),
            }
    return peers, sinks


def piece_stats(
    pieces: Iterable[RunningPiece], drains: Mapping[str, tuple[SinkHolds, Drain]]
) -> dict[str, Any]:
    return {
        one.piece.name: {
            "transactions": one.coordinator.totals.transactions,
            "last_batch_s": one.last_batch_s,
            "statuses": statuses(one, drains),
        }
        for one in pieces
    }


def statuses(
    running: RunningPiece, drains: Mapping[str, tuple[SinkHolds, Drain]]
) -> dict[str, int]:
    """How messages ended that did not end in done: in batches, and on their way from a park."""
    found = Counter(dict(running.coordinator.totals.statuses))
    for sink in running.piece.components:
        _, drain = drains.get(f"{running.piece.name}/{sink}", (None, None))
        if drain is not None:
            found.update(dict(drain.record.statuses))
    return dict(found)


def rss_bytes() -> int:
    with Path("/proc/self/statm").open("rb") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
