"""Reachability and cycles. Graphs are names, each with the names ahead of it; no recursion anywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Name = TypeVar("Name")


def reachable(sources: Iterable[Name], ahead: dict[Name, list[Name]]) -> set[Name]:
    found = set(sources)
    waiting = list(found)
    while waiting:
        for name in ahead[waiting.pop()]:
            if name not in found:
                found.add(name)
                waiting.append(name)
    return found


def find_cycles(ahead: dict[Name, list[Name]]) -> list[list[Name]]:
    """One cycle, a shortest one, for every knot of cycles; from its member that is first in `ahead`."""
    found = []
    for knot in _knots(ahead):
        members = set(knot)
        start = next(name for name in ahead if name in members) if len(knot) > 1 else knot[0]
        inside = {name: [t for t in ahead[name] if t in members] for name in knot}
        way = _way_back(start, inside)
        if way:
            found.append(way)
    return found


def _knots(ahead: dict[Name, list[Name]]) -> list[list[Name]]:
    """Strongly connected components (Tarjan), without recursion: chains may be long."""
    order: dict[Name, int] = {}
    lowest: dict[Name, int] = {}
    stack: list[Name] = []
    on_stack: set[Name] = set()
    found: list[list[Name]] = []
    for root in ahead:
        if root in order:
            continue
        walk = [(root, iter(ahead[root]))]
        order[root] = lowest[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while walk:
            name, targets = walk[-1]
            target = next(targets, None)
            if target is None:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[name])
                if lowest[name] == order[name]:
                    knot = stack[stack.index(name) :]
                    del stack[-len(knot) :]
                    on_stack.difference_update(knot)
                    found.append(knot)
            elif target not in order:
                order[target] = lowest[target] = len(order)
                stack.append(target)
                on_stack.add(target)
                walk.append((target, iter(ahead[target])))
            elif target in on_stack:
                lowest[name] = min(lowest[name], order[target])
    return found


def _way_back(start: Name, ahead: dict[Name, list[Name]]) -> list[Name]:
    """The shortest way from `start` to itself, without the return; empty if there is none."""
    came_from: dict[Name, Name] = {}
    waiting = [start]
    for name in waiting:
        for target in ahead[name]:
            if target == start:
                way = [name]
                while way[-1] != start:
                    way.append(came_from[way[-1]])
                return way[::-1]
            if target not in came_from:
                came_from[target] = name
                waiting.append(target)
    return []
