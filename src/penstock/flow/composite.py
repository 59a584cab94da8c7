"""The status of a message that was copied: composed of its branches', copy by copy."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from penstock.config.flow import Flow
from penstock.flow.graph import Graph
from penstock.links.routing import ReplicatorOptions
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
        """`ends` has a status for every component at which the message, or a copy of it, ended. Those that
        the flow no longer has count beside all others."""
        gone = [status for name, status in ends.items() if name not in self._graph.nodes]
        found = self._at(source, ends)
        return compose(gone if found is None else [found, *gone])

    def _at(self, node: str, ends: Mapping[str, Status]) -> Status | None:
        if node in ends:
            return ends[node]
        below = [self._at(link.target, ends) for link in self._graph.outputs(node)]
        known = [status for status in below if status is not None]
        return compose(known) if known else None

    def others(self, source: str, ends: Collection[str]) -> dict[str, bool]:
        """Where copies went that `ends` does not mention: the components right below the links that made
        them, and whether it is sure that there was a copy for each."""
        found: dict[str, bool] = {}
        self._look(source, ends, found)
        return found

    def _look(self, node: str, ends: Collection[str], found: dict[str, bool]) -> bool:
        """Whether something is known of what went to this node."""
        if node in ends:
            return True
        targets = [link.target for link in self._graph.outputs(node)]
        quiet = [target for target in targets if not self._look(target, ends, found)]
        copies = self._copies(node)
        if len(quiet) < len(targets) and copies > len(targets) - len(quiet):
            for target in quiet:
                found[self._graph.nodes[target].component.name] = copies == len(targets)
        return len(quiet) < len(targets)

    def _copies(self, node: str) -> int:
        """How many a message becomes there."""
        component = self._graph.nodes[node].component
        count = len(self._graph.outputs(node))
        if isinstance(component.options, ReplicatorOptions) and component.options.mode == "hash":
            return min(count, component.options.replicas or 1)
        return count if component.is_source or component.module in COPIERS else 1


class FlatComposite(Composite):
    """Of branches that the flow may not have any more: all of them count alike."""

    def of(self, source: str, ends: Mapping[str, Status]) -> Status:
        return compose(ends.values())

    def others(self, source: str, ends: Collection[str]) -> dict[str, bool]:
        return {}
