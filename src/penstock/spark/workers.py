"""Spark's Python workers, from within.

PySpark looks for garbage after every task, through everything that a worker has ever imported: for small
micro-batches that is a good part of their time. What is there after a first task stays, and need not be gone through again.
"""

from __future__ import annotations

import gc

_settled: set[str] = set()


def settle(kind: str) -> None:
    """At the end of a task. The first of its kind has imported what all of them need."""
    if kind not in _settled:
        _settled.add(kind)
        gc.collect()
        gc.freeze()
