"""From a POST to its receipt, through `penstock run`: at 100 messages a second, and the first one after a cold start.

Beside it, in the same run: the bare micro-batch of Spark with its own settings, from a source inside the JVM to
nothing, one batch right after the other. Both have run as many batches before they are measured. A message that arrives at any moment waits for the micro-batch in work to end, and then for its own; so to be
below *one* bare micro-batch, ours must take well under two thirds of one.

A message has its receipt when the store says that its position is settled: the engine writes that after the
sinks have committed. The store is asked every millisecond.
"""

from __future__ import annotations

import http.client
import json
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench import pipeline, servers
from bench.process import Failed, free_port
from bench.suite import Row, Suite
from bench.worker import run_worker
from penstock.flow.receipts import Receipts

NAME = "receipts"
RATE_PER_S = 100
MESSAGE_BYTES = 200
ASK_S = 0.001
SETTLE_TIMEOUT_S = 60.0
WARM_BATCHES = 200
WARM_STEP_S = 0.5
BARE_BATCHES = 400
BARE_ROWS = 10
"""Of one bare batch: about what arrives during it at this rate."""

WORKER_TIMEOUT_S = 600.0
SINKS = (1, 10)

HEAD = """
name: bench
system: {{admin: {{enabled: false}}}}
components:
  in: {{module: receiver.http, params: {{bind: "127.0.0.1:{port}"}}}}
"""


def run(suite: Suite) -> None:
    rounds = min(suite.rounds, 3)
    seconds = 3 if suite.quick else 10
    bare = [_bare(suite, number) for number in range(rounds)]
    routed = [_flow(suite, "routed", pipeline.ROUTED, n, seconds) for n in range(rounds)]
    for part in ("p50", "p99"):
        ours = [sample[part] for sample in routed]
        theirs = [sample[part] for sample in bare]
        name = f"POST to receipt at {RATE_PER_S}/s, {part}, against a bare micro-batch of Spark"
        pairs = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        note = f"{statistics.median(ours):.0f} against {statistics.median(theirs):.0f} ms"
        suite.add(Row(name, "x", pairs, 1.0, at_most=True, note=note))
    suite.add(Row("first receipt after a cold start", "s", [one["first_s"] for one in routed]))
    alone = statistics.median(one["p50"] for one in routed)
    for count in SINKS:
        sample = _flow(suite, f"{count} sinks", pipeline.copied(count), 0, seconds)
        name = f"POST to receipt, p50, {count} sinks against two"
        suite.add(Row(name, "x", [sample["p50"] / alone], note=f"{sample['p50']:.0f} ms"))


def _flow(suite: Suite, label: str, text: str, number: int, seconds: float) -> dict[str, float]:
    folder = suite.scratch(f"{NAME}/{label}")
    port = free_port()
    text = (HEAD.format(port=port) + text).replace("OUT", str(folder / "out"))
    begun = time.perf_counter()
    with servers.start_flow(folder, port, text, suite.cores) as server:
        watch = Settled(folder / "data")
        load = Load(port)
        load.post()
        watch.wait(1)
        first_s = time.perf_counter() - begun
        while watch.batches < _few(suite, WARM_BATCHES):
            load.run(WARM_STEP_S)
            watch.wait(load.count)
        skip = load.count
        load.run(seconds)
        watch.wait(load.count)
        waits_ms = [(watch.settled_at(n) - load.sent[n]) * 1e3 for n in range(skip, load.count)]
        watch.close()
        suite.saw_memory(NAME, server.memory)
    found = {**_quantiles(waits_ms), "first_s": first_s}
    suite.keep(NAME, {"round": number, "flow": label, **found})
    print(f"  {NAME}: {label}: {json.dumps(found)}", file=sys.stderr, flush=True)
    return found


def _few(suite: Suite, batches: int) -> int:
    return batches // 4 if suite.quick else batches


def _quantiles(times_ms: list[float]) -> dict[str, float]:
    ordered = sorted(times_ms)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
    }


class Load:
    """POSTs on one connection, evenly paced; `sent` has the moment of each."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._body = b"x" * MESSAGE_BYTES
        self.sent: list[float] = []

    @property
    def count(self) -> int:
        return len(self.sent)

    def post(self) -> None:
        dest = "ab"[self.count % 2]
        self.sent.append(time.perf_counter())
        self._connection.request("POST", f"/?dest={dest}", self._body)
        answer = self._connection.getresponse()
        answer.read()
        if answer.status != 202:
            raise Failed(f"a POST was answered {answer.status}")

    def run(self, seconds: float) -> None:
        begun = time.perf_counter()
        for number in range(int(seconds * RATE_PER_S)):
            time.sleep(max(0.0, begun + number / RATE_PER_S - time.perf_counter()))
            self.post()


class Settled:
    """When the receipts came: the moments at which the frontier of the topic moved."""

    def __init__(self, data: Path) -> None:
        self._receipts = Receipts(data)
        self._moves: list[tuple[int, float]] = []
        self._stop = threading.Event()
        self._asker = threading.Thread(target=self._ask, daemon=True)
        self._asker.start()

    @property
    def batches(self) -> int:
        """So many that had messages."""
        return len(self._moves)

    def _ask(self) -> None:
        known = 0
        while not self._stop.wait(ASK_S):
            frontier = self._receipts.frontier(str(pipeline.TOPIC), 0)
            if frontier > known:
                self._moves.append((frontier, time.perf_counter()))
                known = frontier

    def wait(self, count: int) -> None:
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not self._moves or self._moves[-1][0] < count:
            if time.monotonic() > deadline:
                raise Failed(f"no receipt for message {count} in {SETTLE_TIMEOUT_S:.0f} s")
            time.sleep(0.01)

    def settled_at(self, offset: int) -> float:
        return next(at for frontier, at in self._moves if frontier > offset)

    def close(self) -> None:
        self._stop.set()
        self._asker.join()
        self._receipts.close()


# --- Spark alone, in a worker -------------------------------------------------------------------------


def _bare(suite: Suite, number: int) -> dict[str, float]:
    folder = suite.scratch(f"{NAME}/bare")
    warm, measured = _few(suite, WARM_BATCHES), _few(suite, BARE_BATCHES)
    arguments = {"folder": str(folder), "batches": warm + measured}
    found = run_worker(suite, NAME, "bench.receipts", arguments, WORKER_TIMEOUT_S, both_cores=True)
    batches_ms = found["batches_ms"][warm : warm + measured]
    sample = _quantiles(batches_ms)
    suite.keep(NAME, {"round": number, "flow": "bare", "batches": len(batches_ms), **sample})
    print(f"  {NAME}: bare: {json.dumps(sample)}", file=sys.stderr, flush=True)
    return sample


def _work(folder: Path, batches: int) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("bare")
    # All else is as Spark has it. This only says how many batches are remembered, for us to read.
    builder = builder.config("spark.sql.streaming.numRecentProgressUpdates", str(2 * batches))
    spark = builder.getOrCreate()
    # The source `rate` has something new once a second; this one always has.
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(BARE_ROWS)).load()
    write = rows.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = write.start()
    while (last := query.lastProgress) is None or last.batchId < batches:
        if not query.isActive:
            raise Failed(f"the bare query ended: {query.exception()}")
        time.sleep(0.1)
    batches_ms = [
        one.durationMs["triggerExecution"] for one in query.recentProgress if one.numInputRows
    ]
    query.stop()
    spark.stop()
    return {"batches_ms": batches_ms}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_work(Path(given.pop("folder")), **given)))
