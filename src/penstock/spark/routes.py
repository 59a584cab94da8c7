"""Routes as Spark SQL: where a row goes, as the number of a place or as an array of them.

Rows that become several are exploded from such an array, and so are rows that may vanish: Spark moves a
filter down through everything that was computed before it, and would compute all of that twice.

A choice by hash is a *rendezvous*: each target's score is a hash of its name and of the event's key, and
the highest win. So each event's choice depends on nothing but the event and the names of the targets; one
target more takes over its fair share, and moves nothing else. The hash is Spark's `xxhash64` (seed 42),
which does not change between versions: it decides bucketing on disk, too.
"""

from __future__ import annotations

from penstock.flow.plan import Copy, Hashed, Pick, Route, To, Vanish
from penstock.spark import sql

TURN = "_penstock_turn"
"""The column that a link which takes turns has set."""

NOTHING = "CAST(array() AS array<int>)"
"""No places."""


def one(route: Route) -> str:
    """The place's number. Only for routes that lead every row to one place."""
    match route:
        case To(place):
            return str(place)
        case Pick():
            cases = [(_key(route, key), one(target)) for key, target in route.cases]
            return sql.case(_subject(route), cases, one(route.other))
        case Hashed():
            assert route.replicas == 1
            scored = [f"struct({_score(route, name)}, {one(t)} AS p)" for name, t in route.targets]
            return f"greatest({', '.join(scored)}).p"
        case Copy() | Vanish():
            raise AssertionError("not one place")


def many(route: Route) -> str:
    """An array of the places' numbers."""
    match route:
        case Vanish():
            return NOTHING
        case To(place):
            return f"array({place})"
        case Pick():
            cases = [(_key(route, key), many(target)) for key, target in route.cases]
            return sql.case(_subject(route), cases, many(route.other))
        case Copy():
            if all(isinstance(target, To) for target in route.routes):
                return f"array({', '.join(map(one, route.routes))})"
            return f"concat({', '.join(map(many, route.routes))})"
        case Hashed():
            scored = [f"struct({_score(route, name)}, {many(t)} AS p)" for name, t in route.targets]
            return f"flatten(slice(sort_array(array({', '.join(scored)}), false), 1, {route.replicas}).p)"


def _subject(route: Pick) -> str:
    match route.by:
        case "meta":
            return f"meta[{sql.text(route.key or '')}]"
        case "peer":
            return "peer"
        case "turn":
            return TURN


def _key(route: Pick, key: str) -> str:
    return key if route.by == "turn" else sql.text(key)


def _score(route: Hashed, target: str) -> str:
    """The target's name goes last: the hash of a long payload is then computed once for all."""
    key = "payload"
    if route.hash_key is not None:
        key = f"coalesce(CAST(meta[{sql.text(route.hash_key)}] AS binary), payload)"
    return f"xxhash64(xxhash64({key}), {sql.text(target)})"


def is_wide(route: Route) -> bool:
    """Whether rows on this route may come to several places, or to none."""
    match route:
        case To():
            return False
        case Vanish() | Copy():
            return True
        case Pick():
            return any(map(is_wide, (route.other, *(target for _, target in route.cases))))
        case Hashed():
            return route.replicas > 1 or any(is_wide(target) for _, target in route.targets)
