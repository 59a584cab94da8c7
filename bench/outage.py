"""A sink that fails for minutes and then recovers, beside two that work. It takes longer
than the outage (`--outage-s`, ten minutes).

    python -m bench.run outage
    python -m bench.run outage --outage-s 60

Numbered messages come in at a steady rate and are copied to three file sinks. Where the third keeps its files, there
is then a plain file, so that it fails; later there is a folder again. Said are: the rate at which its siblings have
committed during the outage, against the time before; how long the backlog took to drain; and how many messages
are missing or twice in any of the three, which must be none.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from bench import pipeline, servers
from bench.process import Failed, free_port
from bench.receipts import HEAD
from bench.suite import Row, Suite
from penstock.flow.receipts import Receipts

NAME = "outage"
RATE_PER_S = 2_000
LINES = 100
BEFORE_S = 30.0
DRAIN_TIMEOUT_S = 900.0
SINKS = ("s0", "s1", "s2")
BROKEN = SINKS[-1]
GOAL = 0.99  # of the rate before: a steady rate that is kept is 1, give or take a micro-batch


def run(suite: Suite) -> None:
    folder = suite.scratch(NAME)
    out = folder / "out"
    before_s = 5.0 if suite.quick else BEFORE_S
    port = free_port()
    head = HEAD.format(port=port).replace(
        "module: receiver.http,", "module: receiver.http, interceptors: [lines],"
    )
    text = (head + pipeline.copied(len(SINKS))).replace("OUT", str(out))
    with servers.start_flow(folder, port, text, suite.cores) as server, Load(port) as load:
        settled = Settled(folder / "data")
        settled.wait(1)
        settled.watch(before_s / 2)  # warm
        usual = settled.watch(before_s)
        _break(out / BROKEN)
        settled.wait_parked()
        _say(f"{BROKEN} fails for {suite.outage_s:.0f} s")
        during = settled.watch(suite.outage_s)
        _mend(out / BROKEN)
        mended = time.monotonic()
        _say("it is back")
        settled.wait_drained()
        drain_s = time.monotonic() - mended
        sent = load.stop()
        settled.wait(sent)
        settled.wait_drained()
        suite.saw_memory(NAME, server.memory)
    counts = {sink: _numbers(out / sink, sent) for sink in SINKS}
    found = {"usual_per_s": usual, "during_per_s": during, "drain_s": drain_s, "sent": sent}
    suite.keep(NAME, {**found, "outage_s": suite.outage_s})
    name = f"a sink is out for {suite.outage_s:.0f} s"
    note = f"{during:.0f} against {usual:.0f} messages/s, {sent} in all"
    suite.add(
        Row(f"{name}: the others' rate against before", "x", [during / usual], GOAL, note=note)
    )
    suite.add(Row(f"{name}: its backlog has drained after", "s", [drain_s]))
    for what, wrong in (("missing", _missing), ("doubled", _doubled)):
        found_wrong = float(sum(wrong(one) for one in counts.values()))
        suite.add(Row(f"{name}: messages {what} in any sink", "", [found_wrong], 0.0, at_most=True))


class Load:
    """Numbered lines at a steady rate, from a thread of its own. Every POST is answered before the next."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._stop = threading.Event()
        self._sent = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    def stop(self) -> int:
        """How many were sent and answered."""
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise Failed(f"the load ended: {self._error}")
        return self._sent

    def _run(self) -> None:
        begun = time.monotonic()
        try:
            while not self._stop.wait(max(0.0, begun + self._sent / RATE_PER_S - time.monotonic())):
                numbers = range(self._sent, self._sent + LINES)
                body = b"\n".join(b"%d" % number for number in numbers)
                self._connection.request("POST", "/", body)
                answer = self._connection.getresponse()
                answer.read()
                if answer.status != 202:
                    raise Failed(f"a POST was answered {answer.status}")
                self._sent += LINES
        except (OSError, http.client.HTTPException, Failed) as error:
            self._error = error


class Settled:
    """What the receipts say: a position is settled once the sinks that work have committed it."""

    def __init__(self, data: Path) -> None:
        self._receipts = Receipts(data)

    def _frontier(self) -> int:
        return self._receipts.frontier(str(pipeline.TOPIC), 0)

    def watch(self, seconds: float) -> float:
        """Messages a second that were settled meanwhile."""
        begun, first = time.monotonic(), self._frontier()
        time.sleep(seconds)
        return (self._frontier() - first) / (time.monotonic() - begun)

    def wait(self, count: int) -> None:
        self._until(lambda: self._frontier() >= count, f"{count} messages are settled")

    def wait_parked(self) -> None:
        self._until(lambda: bool(self._receipts.parked()), "the broken sink is held")

    def wait_drained(self) -> None:
        self._until(lambda: not self._receipts.parked(), "the backlog has drained")

    def _until(self, happens: Any, what: str) -> None:
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while not happens():
            if time.monotonic() > deadline:
                raise Failed(f"did not happen in {DRAIN_TIMEOUT_S:.0f} s: {what}")
            time.sleep(0.1)


def _break(folder: Path) -> None:
    """What it holds stays, out of its reach."""
    folder.rename(folder.with_suffix(".away"))
    folder.write_text("a file where the sink wants its folder")


def _mend(folder: Path) -> None:
    folder.unlink()
    folder.with_suffix(".away").rename(folder)


def _numbers(folder: Path, sent: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How often each message is there."""
    found = np.fromiter(_payloads(folder), np.int64)
    return np.bincount(found, minlength=sent)


def _payloads(folder: Path) -> Iterator[int]:
    for path in sorted(folder.glob("events-*")):
        for line in path.read_bytes().splitlines():
            yield int(orjson.loads(line)["payload"])


def _missing(counts: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    return int((counts == 0).sum())


def _doubled(counts: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    return int(np.maximum(counts - 1, 0).sum())


def _say(text: str) -> None:
    print(f"  {NAME}: {text}", file=sys.stderr, flush=True)
