"""One process under supervision: started, watched, asked for its counters, started again, stopped.

    starting ─► recovering ─► ready ─► (dies) ─► waiting ─► starting …
        └────────────┴───────────┴──────► stopping ─► stopped

A process that reports `failed`, or ends by itself, before it was ever ready ends the whole start:
what is wrong then (a port in use, a directory that cannot be written) does not mend itself. Once it
has been ready it is started again for ever, with growing pauses, and `/health` says so. One that works `once`
ends when it says why it failed, or after ONCE_TRIES deaths.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, cast

from penstock import logs
from penstock.edge.control import Control, WorkerStats
from penstock.errors import PenstockError, Unavailable
from penstock.limits import ONCE_TRIES, STATS_TIMEOUT_S
from penstock.supervisor.backoff import Backoff

log = logs.get("supervisor")

_GONE_S = 5.0
"""From the end of a process's control stream to its end; past it, it hangs and is killed."""


class ChildState(StrEnum):
    STARTING = "starting"
    RECOVERING = "recovering"
    READY = "ready"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Child:
    """`module` is run with `--control FD` and sent `plan`. Use `run` as a task, then `stop`."""

    def __init__(
        self,
        name: str,
        module: str,
        plan: dict[str, Any],
        *,
        on_death: Callable[[str], None] = lambda name: None,
        on_message: Callable[[dict[str, Any]], None] = lambda message: None,
        once: bool = False,
        stdout: int | None = None,
    ) -> None:
        """`stdout`: a descriptor that it inherits under the same number; the plan says which."""
        self.name = name
        self.state = ChildState.STARTING
        self.pid: int | None = None
        self.restarts = 0
        self.last_error: str | None = None
        self.state_since = time.time()
        self.started: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        """The addresses once it is ready for the first time, or Unavailable if that cannot be."""
        self._module = module
        self._plan = plan
        self._on_death = on_death
        self._on_message = on_message
        self._once = once
        self._stdout = stdout
        self.finished = asyncio.Event()
        """Set when it has ended for good: told to, or because its work is done (`once`)."""
        self.gave_up: str | None = None
        """Why its work was not done, with `once`."""
        self._backoff = Backoff()
        self._process: asyncio.subprocess.Process | None = None
        self._control: Control | None = None
        self._stopping = asyncio.Event()
        self._ready_at: float | None = None
        self._last_failure: str | None = None
        self._questions: dict[int, asyncio.Future[WorkerStats]] = {}
        self._asked = 0
        self._task: asyncio.Task[None] | None = None
        self._kill_asked = False
        self._killed = False  # in the middle of a stop: it was not a clean one

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"supervise {self.name}")

    async def stop(self, timeout_s: float) -> bool:
        """Tell it to finish and wait; kill it when the time is up. False if it had to be killed."""
        self._stopping.set()
        if self.state is not ChildState.STOPPED:
            self._become(ChildState.STOPPING)
        if self._control is not None:
            self._control.send({"type": "stop"})
        if self._task is None:
            return True
        done, _ = await asyncio.wait({self._task}, timeout=timeout_s)
        if not done:
            log.warning("process does not stop; it is killed", child=self.name, pid=self.pid)
            self.kill()
            await asyncio.wait({self._task})
        return not self._killed

    def kill(self) -> None:
        """At once, and for good."""
        self._stopping.set()
        self._kill_asked = True
        self._kill_process()

    async def stats(self) -> WorkerStats | None:
        """Its counters, or None if it does not answer in time."""
        if self._control is None or self.state is not ChildState.READY:
            return None
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[WorkerStats] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._control.send({"type": "stats", "n": number})
        try:
            return await asyncio.wait_for(answer, STATS_TIMEOUT_S)
        except (TimeoutError, Unavailable):
            return None
        finally:
            self._questions.pop(number, None)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            self._ready_at = None
            self._last_failure = None
            code = await self._live()
            self._on_death(self.name)
            if self._stopping.is_set() or (self._once and code == 0):
                break
            self.last_error = self._last_failure or _ending(code)
            if not self.started.done() and code >= 0:
                reason = self._last_failure or f"{_ending(code)} before it was ready (see above)"
                self.started.set_exception(Unavailable(f"{self.name}: {reason}"))
                break
            if self._once and (self._last_failure or self.restarts + 1 >= ONCE_TRIES):
                self.gave_up = self.last_error
                break
            await self._pause()
        self._become(ChildState.STOPPED)
        self.finished.set()
        if not self.started.done():
            self.started.cancel()

    def send(self, message: dict[str, Any]) -> None:
        """A frame of one of the kinds in `edge.control`; dropped while it is not running."""
        if self._control is not None:
            self._control.send(message)

    async def _pause(self) -> None:
        healthy_s = 0.0 if self._ready_at is None else time.monotonic() - self._ready_at
        delay_s = self._backoff.next_delay_s(healthy_s)
        self._become(ChildState.WAITING)
        log.error(
            "process died; it is started again",
            child=self.name,
            reason=self.last_error,
            restarts=self.restarts,
            delay_s=round(delay_s, 3),
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        self.restarts += 1

    async def _live(self) -> int:
        """One life of the process, from its start to its exit code (negative: a signal)."""
        self._become(ChildState.STARTING)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                self._process = await self._spawn(theirs)
            except OSError as error:
                ours.close()
                self._last_failure = f"cannot be started: {logs.describe(error)}"
                return 1
        self.pid = self._process.pid
        self._control = await Control.open(ours)
        self._control.send({"type": "plan", "plan": self._plan})
        if self._stopping.is_set():
            self._control.send({"type": "stop"})
        if self._kill_asked:
            self._kill_process()
        try:
            await self._listen(self._control)
            return await self._ended(self._process)
        finally:
            self._control.close()
            self._control = None
            self.pid = None
            for answer in self._questions.values():
                if not answer.done():
                    answer.set_exception(Unavailable(f"{self.name} died"))

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        # -P: a file of the user's folder must not stand in for a module of ours.
        # A process group of its own: Ctrl-C is for the supervisor, which stops things in order.
        # stdout goes to stderr: only `ready` and what a flow prints go to the supervisor's stdout.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            self._module,
            "--control",
            str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            pass_fds=[fd for fd in (theirs.fileno(), self._stdout) if fd is not None],
            process_group=0,
        )

    async def _listen(self, control: Control) -> None:
        try:
            while (message := await control.receive()) is not None:
                self._heard(message)
        except (PenstockError, KeyError, TypeError) as error:
            self._last_failure = f"sent what makes no sense: {logs.describe(error)}"
            self._kill_process()

    def _kill_process(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._killed = self._stopping.is_set()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _heard(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "recovering" and not self._stopping.is_set():
            self._become(ChildState.RECOVERING)
        elif kind == "ready" and not self._stopping.is_set():
            self._ready_at = time.monotonic()
            self._become(ChildState.READY)
            if not self.started.done():
                self.started.set_result(message["addresses"])
        elif kind == "failed":
            self._last_failure = str(message["error"])
        elif kind == "stats":
            answer = self._questions.pop(message["n"], None)
            if answer is not None and not answer.done():
                answer.set_result(cast(WorkerStats, message["data"]))
        else:
            self._on_message(message)

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        try:
            return await asyncio.wait_for(process.wait(), _GONE_S)
        except TimeoutError:
            log.warning("process hangs; it is killed", child=self.name, pid=process.pid)
            self._kill_process()
            return await process.wait()

    def _become(self, state: ChildState) -> None:
        if state is not self.state:
            self.state = state
            self.state_since = time.time()
            log.debug("process changed", child=self.name, state=str(state), pid=self.pid)


def own_stdout() -> int | None:
    """This process's, as a descriptor that a child can inherit; None if it is closed."""
    with contextlib.suppress(OSError):
        return os.dup(1)
    return None


def _ending(code: int) -> str:
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    return f"ended with exit code {code}"
