"""The status of a message that was copied: composed of its branches', copy by copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.config.flow import Flow
from penstock.flow.graph import Graph
from penstock.status import Status

COPIERS = ("link.multiplexer", "link.replicator")


def compose(statuses: Iterable[Status]) -> Status:
    """No branches: done. All done: done. One still open: new. One silent for too long: timed out.

    Some done: partial. None done: what they have in common, or failed.
    """
    found = set(statuses)
    if not found - {Status.DONE}:
        return Status.DONE
    for early in (Status.NEW, Status.TIMED_OUT):
        if early in found:
            return early
    if Status.DONE in found:
        return Status.PARTIAL
    return found.pop() if len(found) == 1 else Status.FAILED


class Composite:
    """Composes along a flow's graph: whoever stands above a copy sees one status for all of it."""

    def __init__(self, flow: Flow) -> None:
        self._graph = Graph(flow)

    def of(self, source: str, ends: Mapping[str, Status]) -> Status:
        """`ends` has a status for every component at which the message, or a copy of it, ended."""
        return self._at(source, ends) or Status.DONE

    def _at(self, node: str, ends: Mapping[str, Status]) -> Status | None:
        if node in ends:
            return ends[node]
        below = [self._at(link.target, ends) for link in self._graph.outputs(node)]
        known = [status for status in below if status is not None]
        return compose(known) if known else None
