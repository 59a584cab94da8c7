"""A Spark that does what tests do, once, so that its JVM has loaded what theirs will need (see `tools.jvm`)."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import penstock.spark.session
from penstock.testing import Clock, FlowRunner, Input

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def main() -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    spark = penstock.spark.session.session("local[2]", "training")
    runner = FlowRunner(spark)
    letters = [Input(b"one", {"dest": "a"}), Input(b"two", {"dest": "b"}), Input(b"lost")]
    runner.run(EXAMPLES / "quickstart.yaml", {"web": letters}, real=["box_b"])
    orders = [b'{"order": "o%d", "shop": "north", "amount": %d}' % (n, n) for n in range(3)]
    clock = Clock(datetime(2026, 5, 1, tzinfo=UTC), step_s=60)
    runner.run(EXAMPLES / "shops.yaml", [{"web": orders}, {"web": orders}], clock=clock)
    spark.stop()


if __name__ == "__main__":
    main()
