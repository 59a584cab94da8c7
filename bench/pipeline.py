"""Flows on Spark, in rows a second: all contenders in one session, with the same rows in micro-batches of one size.

- *nothing*: the topic, re-packed as it is soon after it was written, read by Penstock's source, and thrown away.
- *parquet*: the same rows from Spark's own Parquet stream, thrown away.
- *files*: topic, router, two file sinks (JSON lines), exactly once: a flow as `penstock run` runs it.
- *by hand*: the same by a `foreachBatch` that appends JSON files, at least once: what one would otherwise write.
- *1*, *2*, *5* and *10 sinks*: every row of a smaller topic to so many file sinks, exactly once.

Time is what Spark's progress reports for the micro-batches, without the first of each pass; before the first round there
are two passes of each that do not count, so that the JVM has compiled what it will. The files are in the
page cache, and each pass has memory that is backed (`machine.warming`). Every pass of a flow is checked: each sink must hold all of its rows.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from bench import machine
from bench.process import Failed
from bench.suite import Row, Suite
from bench.worker import run_worker
from penstock.config.loading import load
from penstock.engine.running import Engine
from penstock.flow.components import registry
from penstock.limits import BATCH_ROWS
from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.message import Batch
from penstock.spark.session import session

NAME = "spark"
TOPIC = TopicName.parse("bench.in")
MESSAGE_BYTES = 200
PARTITIONS = 2
APPEND_ROWS = 10_000
WORKER_TIMEOUT_S = 1800.0
NOTHING, PARQUET, FILES, BY_HAND = "nothing", "parquet", "files", "by hand"
SINKS = (1, 2, 5, 10)
SINKS_ROWS = 200_000
SINKS_ROUNDS = 2
WARM_UPS = 2
WARMING_S = 3.0

HEAD = """
name: bench
components:
  in: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
"""
ROUTED = """
  by_dest: {module: link.router, params: {routing_key: dest}}
  a: {module: sink.file, params: {path: "OUT/a"}}
  b: {module: sink.file, params: {path: "OUT/b"}}
pipeline:
  in: {connect: by_dest}
  by_dest: {routes: {a: a, b: b}}
"""


def copied(count: int) -> str:
    """Every message to so many file sinks, from the receiver `in`."""
    names = [f"s{number}" for number in range(count)]
    sinks = [f'  {name}: {{module: sink.file, params: {{path: "OUT/{name}"}}}}' for name in names]
    pipeline = f"{{in: {{connect: copy}}, copy: {{links: [{', '.join(names)}]}}}}"
    return "\n".join(["  copy: {module: link.multiplexer}", *sinks, f"pipeline: {pipeline}"])


def run(suite: Suite) -> None:
    arguments = {
        "folder": str(suite.scratch(NAME)),
        "rounds": suite.rounds,
        "batches": 2 if suite.quick else 4,
        "cores": [suite.cores.server, suite.cores.client],
    }
    found = run_worker(suite, NAME, "bench.pipeline", arguments, WORKER_TIMEOUT_S, both_cores=True)
    for sample in found["samples"]:
        suite.keep(NAME, sample)
    rates: dict[str, list[float]] = {}
    for sample in found["samples"]:
        if "rows_per_s" in sample:
            rates.setdefault(sample["contender"], []).append(sample["rows_per_s"])
    suite.add(
        _ratio("spark: topic to nothing, against a Parquet stream", rates, NOTHING, PARQUET, 1.0)
    )
    two = "spark: topic to two files exactly once, against "
    suite.add(_ratio(f"{two}topic to nothing", rates, FILES, NOTHING, 0.5))
    suite.add(_ratio(f"{two}files by hand at least once", rates, FILES, BY_HAND, 0.8))
    for count in SINKS[1:]:
        name = f"spark: every row to {count} sinks, rows written against one sink"
        mine = [rate * count for rate in rates[f"{count} sinks"]]
        one = rates[f"{SINKS[0]} sinks"]
        pairs = [ours / theirs for ours, theirs in zip(mine, one, strict=True)]
        note = f"{statistics.median(mine) / 1e3:.0f} thousand rows/s written"
        suite.add(Row(name, "x", pairs, note=note))


def _ratio(name: str, rates: dict[str, list[float]], ours: str, theirs: str, goal: float) -> Row:
    pairs = [mine / other for mine, other in zip(rates[ours], rates[theirs], strict=True)]
    middle = {one: statistics.median(rates[one]) / 1e3 for one in (ours, theirs)}
    note = f"{middle[ours]:.0f} against {middle[theirs]:.0f} thousand rows/s"
    return Row(name, "x", pairs, goal, note=note)


# --- In the worker ----------------------------------------------------------------------------------


class Progress(StreamingQueryListener):
    """The milliseconds of every micro-batch of the query that runs."""

    def __init__(self) -> None:
        self._batches: dict[int, float] = {}
        self._ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None:
        told = event.progress
        if told.numInputRows:  # which counts rows twice that are read twice
            self._batches[told.batchId] = told.durationMs["triggerExecution"]

    def onQueryIdle(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None:
        self._ended.set()

    def seconds(self, work: Callable[[], None]) -> list[float]:
        """Of the micro-batches of one query, in their order."""
        self._batches.clear()
        self._ended.clear()
        work()
        if not self._ended.wait(60):
            raise Failed("Spark did not say that its query has ended")
        return [spent_ms / 1e3 for _, spent_ms in sorted(self._batches.items())]


class Bench:
    """A topic of so many micro-batches, and a smaller one that is a single one."""

    def __init__(self, folder: Path, batches: int) -> None:
        self.folder = folder
        self.batches = batches
        self.spark: SparkSession = session("local[2]", "bench")
        self.progress = Progress()
        self.spark.streams.addListener(self.progress)

    def fill(self) -> None:
        """The topics, and the same rows as Parquet: one file a task of a micro-batch."""
        _fill(self.folder / "data", self.batches * BATCH_ROWS)
        _fill(self.folder / "small", SINKS_ROWS)
        rows = self.spark.read.format("penstock").options(**self._options()).load()
        files = self.batches * PARTITIONS
        rows.repartition(files).write.parquet(str(self.folder / "parquet"))

    def rows_per_s(self, work: Callable[[], None]) -> float:
        """From the second micro-batch on."""
        with machine.warming(WARMING_S):
            seconds = self.progress.seconds(work)[1:]
        return len(seconds) * BATCH_ROWS / sum(seconds)

    def rows_per_s_to(self, sinks: int) -> float:
        with machine.warming(WARMING_S):
            seconds = self.progress.seconds(
                lambda: self.flow(copied(sinks), self.folder / "small", SINKS_ROWS * sinks)
            )
        return SINKS_ROWS / sum(seconds)

    def _options(self) -> dict[str, str]:
        return {"dataDir": str(self.folder / "data"), "topic": str(TOPIC)}

    def _topic(self) -> DataFrame:
        read = self.spark.readStream.format("penstock").options(**self._options())
        return read.option("maxRowsPerTrigger", str(BATCH_ROWS)).load()

    # --- The contenders -------------------------------------------------------------------------

    def nothing(self) -> None:
        self._drain(self._topic().writeStream.format("noop"))

    def parquet(self) -> None:
        path = str(self.folder / "parquet")
        read = self.spark.readStream.schema(self.spark.read.parquet(path).schema)
        rows = read.option("maxFilesPerTrigger", str(PARTITIONS)).parquet(path)
        self._drain(rows.writeStream.format("noop"))

    def by_hand(self) -> None:
        out = self._out()

        def append(rows: DataFrame, number: int) -> None:
            for dest in ("a", "b"):
                mine = rows.where(f"meta['dest'] = '{dest}'")
                text = mine.withColumns({"key": mine.key.cast("string")})
                text = text.withColumns({"payload": text.payload.cast("string")})
                text.write.mode("append").json(str(out / dest))

        self._drain(self._topic().writeStream.foreachBatch(append))

    def _drain(self, write: Any) -> None:
        write = write.option("checkpointLocation", str(self._fresh("checkpoint")))
        write.trigger(availableNow=True).start().awaitTermination()

    def files(self) -> None:
        self.flow(ROUTED, self.folder / "data", self.batches * BATCH_ROWS)

    def flow(self, text: str, data: Path, wanted: int) -> None:
        """As the engine runs it, from the first message of the topic."""
        out = self._out()
        for known in data.iterdir():  # of an earlier pass: all but the messages
            if known.name != "topics":
                shutil.rmtree(known) if known.is_dir() else known.unlink()
        path = self.folder / "bench.yaml"
        path.write_text((HEAD + text).replace("OUT", str(out)))
        overrides = {"data_dir": str(data), "engine.master": "local[2]"}
        flow = load(path, registry=registry(), overrides=overrides)
        engine = Engine(flow, lambda *_: None, once=True)
        engine.start()
        engine.wait()
        held = sum(_lines(file) for file in out.glob("*/events-*"))
        if held != wanted:
            raise Failed(f"the sinks hold {held} rows, not {wanted}")

    def _out(self) -> Path:
        return self._fresh("out")

    def _fresh(self, name: str) -> Path:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return self.folder / name


def _fill(data: Path, rows: int) -> None:
    log = EmbeddedLog(data)
    log.create(TOPIC, TopicConfig(partitions=PARTITIONS))
    half = APPEND_ROWS // 2
    for partition in range(PARTITIONS):
        writer = log.writer(TOPIC, partition)
        for seq in range(0, rows // PARTITIONS, APPEND_ROWS):
            writer.append([_batch("a", seq, half), _batch("b", seq + half, half)])
        writer.seal()
        writer.close()
    log.maintain(TOPIC)


def _batch(dest: str, seq: int, count: int) -> Batch:
    """JSON of 200 bytes, half of it a text that does not compress: an id, a hash, a token."""
    texts = np.random.default_rng(seq).bytes(count * 60).hex()
    payloads = [
        f'{{"dest": "{dest}", "number": {seq + row:012d}, "text": "{texts[row * 120 : row * 120 + 120]}"}}'
        for row in range(count)
    ]
    padded = [payload.encode().ljust(MESSAGE_BYTES) for payload in payloads]
    return Batch.of("in", "~bench", seq, padded, meta={"dest": dest})


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def _work(folder: Path, rounds: int, batches: int, cores: list[int]) -> dict[str, Any]:
    bench = Bench(folder, batches)
    bench.fill()
    contenders: dict[str, Callable[[], float]] = {
        NOTHING: partial(bench.rows_per_s, bench.nothing),
        PARQUET: partial(bench.rows_per_s, bench.parquet),
        FILES: partial(bench.rows_per_s, bench.files),
        BY_HAND: partial(bench.rows_per_s, bench.by_hand),
    }
    grown = {f"{count} sinks": partial(bench.rows_per_s_to, count) for count in SINKS}
    for _ in range(WARM_UPS):
        for warm in contenders.values():
            warm()
    samples: list[dict[str, Any]] = []
    for group, times in ((contenders, rounds), (grown, min(rounds, SINKS_ROUNDS))):
        for number in range(times):
            noise = machine.probe(folder, machine.Cores(*cores))
            samples.append({"round": number, "probe": noise})
            turn = number % len(group)
            order = list(group)
            for name in [*order[turn:], *order[:turn]]:
                rate = group[name]()
                print(f"  {NAME}: {name}: {rate:.0f} rows/s", file=sys.stderr, flush=True)
                samples.append({"round": number, "contender": name, "rows_per_s": rate})
    bench.spark.stop()
    return {"samples": samples}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    print(json.dumps(_work(Path(given.pop("folder")), **given)))
