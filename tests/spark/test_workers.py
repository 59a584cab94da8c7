"""What happens once in each of Spark's Python workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from penstock.spark.workers import settle

class Loop:
    def __init__(self):
        self.me = self

settle("read")
first = gc.get_freeze_count()
Loop()
settle("read")
again = gc.get_freeze_count()
found = gc.collect()
kept = [[] for _ in range(100)]
settle("write")
print(first, again, found, gc.get_freeze_count())
"""


def test_what_is_there_after_the_first_task_of_a_kind_is_not_gone_through_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60
    )
    first, again, found, last = map(int, done.stdout.split())
    assert first > 1000
    assert again == first, "a second task of that kind freezes nothing"
    assert found > 0, "what comes later is still collected"
    assert last >= again + 100
