"""What the meta of a replayed dead letter says: which letter it was, and how its branches had ended.

A branch that is done is not gone again: nothing that has the message gets it twice. Everything else is gone, also
what the flow did not have when the letter was written, since what failed there may have another name by now.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import orjson

from penstock.sinks.columns import OWN_PREFIX
from penstock.status import Status

REPLAY = f"{OWN_PREFIX}replay"
_KNOWN = 1000


def replay_mark(letter: int, branches: Mapping[str, str]) -> str:
    """`letter` is its offset in the dead-letter topic, `branches` the status of each."""
    return orjson.dumps({"letter": letter, "branches": dict(branches)}).decode()


def letter_of(mark: str) -> int:
    return int(orjson.loads(mark)["letter"])


@lru_cache(maxsize=_KNOWN)
def done_and_open(mark: str) -> tuple[frozenset[str], frozenset[str]]:
    """The branches that had the message, and those on which it ended otherwise. What is no mark says nothing."""
    try:
        branches = dict(orjson.loads(mark)["branches"])
    except (ValueError, KeyError, TypeError):
        return frozenset(), frozenset()
    done = frozenset(name for name, status in branches.items() if status == Status.DONE)
    return done, frozenset(branches) - done


def had_of(mark: str | None) -> frozenset[str]:
    """The branches that had the message before; of one that is no replay, none."""
    return frozenset() if mark is None else done_and_open(mark)[0]
