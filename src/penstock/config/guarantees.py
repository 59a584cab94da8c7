"""The delivery guarantee of every path from a source to an end, and the component that limits it.

A path promises what its weakest component promises. The count begins where a message is durable in its
topic; what may happen to it before that is the receiver's own promise. A plugin promises nothing that is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.config.cycles import reachable
from penstock.config.flow import Component, Edge
from penstock.guarantee import Guarantee


@dataclass(frozen=True, slots=True)
class PathGuarantee:
    """What is promised from `source` to `sink`, over whatever lies between."""

    source: str
    sink: str
    guarantee: Guarantee
    limited_by: str | None  # None: nothing limits it
    reason: str


def path_guarantees(components: dict[str, Component], edges: Iterable[Edge]) -> list[PathGuarantee]:
    """One for each source and each end it can reach, in the order of the file."""
    ahead: dict[str, list[str]] = {name: [] for name in components}
    behind: dict[str, list[str]] = {name: [] for name in components}
    edges = list(edges)
    for edge in edges:
        # A path does not go on through a peer: what goes in there leaves the flow.
        if not components[edge.target].is_end:
            ahead[edge.source].append(edge.target)
        behind[edge.target].append(edge.source)
    goes_on = {edge.source for edge in edges}
    promises = {name: one.options.promise() for name, one in components.items()}
    found = []
    for source, one in components.items():
        if not one.is_source and (one.kind is not None or behind[source]):
            continue
        between = reachable([source], ahead)
        for end, other in components.items():
            into = [name for name in behind[end] if name in between]
            # A plugin may be anything: where nothing comes behind it, it is an end.
            ends = other.is_end or (other.kind is None and end not in goes_on)
            if not ends or not into:
                continue
            on_path = [*_between(source, into, behind, between), end]
            worst = min(on_path, key=lambda name: promises[name][0])
            level, reason = promises[worst]
            limits = worst if level < Guarantee.EXACTLY_ONCE else None
            found.append(PathGuarantee(source, end, level, limits, reason))
    return found


def _between(
    source: str, into: list[str], behind: dict[str, list[str]], allowed: set[str]
) -> list[str]:
    """Everything on some way from the source, the source first."""
    found = dict.fromkeys(into)
    waiting = list(into)
    while waiting:
        for name in behind[waiting.pop()]:
            if name in allowed and name not in found:
                found[name] = None
                waiting.append(name)
    return [source, *(name for name in found if name != source)]
