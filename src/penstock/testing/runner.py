"""`FlowRunner`: a flow, as it is, on a real Spark, from inputs to outputs and receipts."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import orjson
from pyspark.sql import SparkSession

from penstock import faults as points
from penstock.config import inspect, inspect_bytes
from penstock.config.flow import Flow, Missing
from penstock.config.problems import FlowFileError
from penstock.engine.running import Engine
from penstock.errors import BatchFails, ConfigError, PenstockError, Unavailable
from penstock.flow.components import registry
from penstock.limits import TEST_CASE_S, TEST_CRASHES
from penstock.log.embedded import EmbeddedLog
from penstock.sinks.topic import close_appenders
from penstock.spark.session import session
from penstock.supervisor.planning import settle_topics
from penstock.testing.clock import Clock
from penstock.testing.faults import Fault
from penstock.testing.messages import (
    Input,
    Outcome,
    Senders,
    microseconds,
    outputs,
    receipts,
)
from penstock.testing.striking import SinkMaker, crash_rules, is_sink, with_faults

_LATER_S = 24 * 3600.0
"""How far the clock goes forward for a sink that waits: past every backoff and breaker."""

Inputs = Mapping[str, Sequence[Input | bytes | str]]
"""By receiver."""


@dataclass(slots=True)
class Work:
    """A flow whose topics hold its inputs, ready to be carried through; can be pickled."""

    flow: Flow
    real: frozenset[str]
    faults: tuple[Fault, ...]
    folder: Path
    timeout_s: float
    time_us: int | None = None  # time has come so far, though no message says so


class FlowRunner:
    """Runs flows for tests, all on one Spark session, each in a data directory of its own.

        @pytest.fixture(scope="session")
        def runner():
            with FlowRunner() as runner:
                yield runner

        def test_orders_are_routed(runner):
            outcome = runner.run(Path("orders.yaml"), {"web": [Input(b"two", {"dest": "a"})]})
            assert outcome.payloads("box_a") == [b"two"]
            assert outcome.statuses("web") == [Status.DONE]

    The flow is yours, unchanged: planner, coordinator, receipts and Spark are those of `penstock run
    --once`. Two things are not: receivers do not listen (inputs are put into their topics), and sinks
    **collect** what they are given, unless they are named in `real`. `sink.topic` is always real: the topic lies in
    the test's own data directory.

    Make one runner for all tests (`scope="session"`): Spark takes seconds to start. A session that runs
    already is used, and is then left running.
    """

    def __init__(self, spark: SparkSession | None = None, *, keep: Path | None = None) -> None:
        """`keep`: a folder in which the data directories stay, for looking into them afterwards."""
        self._spark = spark
        self._started = False
        self._keep = keep

    def run(
        self,
        flow: Flow | Path | str,
        inputs: Inputs | Sequence[Inputs],
        *,
        faults: Iterable[Fault] = (),
        real: Iterable[str] = (),
        clock: Clock | None = None,
        then_s: float = 0.0,
        timeout_s: float = TEST_CASE_S,
        env: Mapping[str, str] | None = None,
    ) -> Outcome:
        """Carry the inputs through; what every sink was given, and every input's receipt.

        `flow` is a file (Path), the text of one (str), or a flow. Inputs may be given as payloads alone. `env` has the
        variables that the file refers to; those of the process are used where it says nothing.

        Several inputs, in a list, are rounds: the flow is carried through and started anew between them, which is
        how to see what it remembers.

        `then_s` is how long the clock goes on after the last input without a message: windows that end by time
        end, and what links hold back comes out when it is due. Without it, time stands still at the last message.

        Everything that is given at once is one micro-batch or a few: **do not count on where one ends.** When `timeout_s`
        is over, the run is broken off, and `failure` says so; what had not ended is `new`.
        """
        loaded = _load(flow, env)
        made = tempfile.mkdtemp(prefix=f"{loaded.name}.", dir=self._keep)
        folder = Path(made)
        try:
            struck = tuple(faults)
            always = {one.name for one in loaded.components.values() if one.module == "sink.topic"}
            work = Work(
                replace(loaded, data_dir=folder / "data"),
                frozenset(real) | always,
                struck,
                folder,
                timeout_s,
            )
            rounds = [inputs] if isinstance(inputs, Mapping) else list(inputs)
            _check(work, [name for one in rounds for name in one])
            return self._run(work, rounds, clock or Clock(), then_s)
        finally:
            if self._keep is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, work: Work, rounds: Sequence[Inputs], clock: Clock, then_s: float) -> Outcome:
        flow = work.flow
        flow.data_dir.mkdir(mode=0o700)
        receivers = tuple(one for one in flow.components.values() if one.is_source)
        settle_topics(flow, receivers, EmbeddedLog(flow.data_dir))
        senders = Senders(flow, clock)
        failure = None
        for inputs in rounds:
            for name, found in inputs.items():
                senders.send(name, [_input(one) for one in found])
            if failure is None:
                failure = self._carry_through(work)
        if then_s and failure is None:
            clock.advance(then_s)
            failure = self._carry_through(replace(work, time_us=microseconds(clock.now)))
        return Outcome(outputs(flow, work.real), receipts(flow.data_dir, senders.places), failure)

    def _carry_through(self, work: Work) -> str | None:
        if any(fault.kills_engine for fault in work.faults):
            return carry_through_crashes(work)
        return carry_through(work, self.session(work.flow))

    def session(self, flow: Flow) -> SparkSession:
        """The session, started if none is running yet; with the settings of the first flow."""
        if self._spark is None:
            self._started = SparkSession.getActiveSession() is None
            self._spark = session("local[*]", "penstock test", **flow.system.engine.conf)
            if self._started:
                # A task that a test lets fail is no news; what ends a query is in the outcome.
                self._spark.sparkContext.setLogLevel("OFF")
        return self._spark

    def close(self) -> None:
        if self._started and self._spark is not None:
            self._spark.stop()
        self._spark = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        self.close()


def _input(given: Input | bytes | str) -> Input:
    if isinstance(given, Input):
        return given
    return Input(given.encode() if isinstance(given, str) else given)


def _load(flow: Flow | Path | str, env: Mapping[str, str] | None) -> Flow:
    if isinstance(flow, Flow):
        return flow
    variables = {**os.environ, **(env or {})}
    if isinstance(flow, Path):
        loaded = inspect(flow, registry=registry(), environment=variables)
    else:
        text = flow.encode()
        loaded = inspect_bytes(text, "flow.yaml", registry=registry(), environment=variables)
    if loaded.flow is None:
        raise FlowFileError(loaded.problems, loaded.source)
    return loaded.flow


def _check(work: Work, inputs: Sequence[str]) -> None:
    flow = work.flow
    for name in [*inputs, *work.real, *(one.at for one in work.faults)]:
        if name not in flow.components:
            raise ConfigError(f"the flow {flow.name} has no component {name}")
    for name in inputs:
        if not flow.components[name].is_source:
            raise ConfigError(f"{name} takes no inputs: it is a {flow.components[name].module}")
    for name in work.real:
        if not flow.components[name].is_end:
            raise ConfigError(f"{name} cannot be real: it is a {flow.components[name].module}")
    if missing := missing_for_test(flow, work.real):
        what = ", ".join(f"{gap.what} ({gap.component or 'the flow'})" for gap in missing)
        raise Unavailable(f"{flow.name} cannot be tested, not there yet in this version: {what}")


def missing_for_test(flow: Flow, real: frozenset[str]) -> list[Missing]:
    """What this version cannot run, without what a test does not run either."""
    idle = {
        one.name
        for one in flow.components.values()
        if one.is_source or (is_sink(flow, one.name) and one.name not in real)
    }
    return [
        gap for gap in flow.missing() if gap.component not in idle or gap.what.startswith("codec ")
    ]


class _Waits:
    """The clocks of sinks that are held back: no test waits for them."""

    def __init__(self) -> None:
        self.tries_s = 0.0
        self.ahead_s = 0.0

    def now_s(self) -> float:
        """By which they are tried again."""
        return self.tries_s

    def wall_s(self) -> float:
        """By which messages that wait for them are late."""
        return time.time() + self.ahead_s


def carry_through(work: Work, spark: SparkSession) -> str | None:
    """Run the flow until all its inputs have ended, or nothing more can happen. Why it could not."""
    sinks = SinkMaker(work.flow, work.real, work.faults, work.folder)
    waits = _Waits()
    engine = Engine(
        with_faults(work.flow, work.faults, work.folder),
        lambda *_: None,
        once=True,
        spark=spark,
        make_sink=sinks,
        clock=waits.now_s,
        now_s=waits.wall_s,
    )
    over = threading.Event()

    def halt() -> None:
        over.set()
        engine.abandon()
        engine.stop()

    timer = threading.Timer(work.timeout_s, halt)
    timer.daemon = True
    timer.start()
    try:
        engine.start()
        if work.time_us is not None:
            engine.pass_time(work.time_us)
        try:
            engine.wait()
        except (BatchFails, Unavailable) as error:
            return str(error)
        _drain(engine, work, waits, over)
        why = engine.failure
    finally:
        timer.cancel()
        engine.abandon()
        engine.stop()
        sinks.close()
        _let_go(work.flow)
    if over.is_set():
        return f"broken off after {work.timeout_s:g} s" + (f": {why}" if why else "")
    return None


def _drain(engine: Engine, work: Work, waits: _Waits, over: threading.Event) -> None:
    """Give sinks that are held back the time they need; those that fail for ever get no more tries
    than it takes to give up. What then still waits is late, if a copy above has a timeout."""
    tries = 2 + sum(fault.times or 1 for fault in work.faults)
    tries += max((held.max_retry or 0 for held in engine.held().values()), default=0)
    for _ in range(tries):
        if over.is_set() or not engine.held():
            return
        waits.tries_s += _LATER_S
        engine.drain()
    waits.ahead_s = 1.0 + max((held.timeout_s or 0.0 for held in engine.held().values()), default=0)
    engine.drain()


def _let_go(flow: Flow) -> None:
    """Nothing of this data directory stays open in this process."""
    for topic in EmbeddedLog(flow.data_dir).topics():
        close_appenders(str(flow.data_dir), str(topic))


def carry_through_crashes(work: Work) -> str | None:
    """The same in processes of their own, one after the other, until one is not killed."""
    environment = {
        **os.environ,
        points.VARIABLE: orjson.dumps(crash_rules(work.faults, work.folder)).decode(),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [sys.executable, "-m", "penstock.testing.engine"]
    for _ in range(TEST_CRASHES):
        process = subprocess.run(
            command,
            input=pickle.dumps(work),
            env=environment,
            stdout=subprocess.PIPE,
            start_new_session=True,
            check=False,
        )
        if process.returncode != -signal.SIGKILL:
            break
    else:
        return f"crashed {TEST_CRASHES} times"
    if process.returncode != 0:
        raise PenstockError(process.stdout.decode().strip() or "the engine's process failed")
    return process.stdout.decode().strip() or None
