"""The `penstock` command as a real process: in a pipe, or on a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.supervisor.running import PENSTOCK, WAIT_S, clean_environment

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def penstock(
    *arguments: str,
    cwd: Path,
    stdin: bytes = b"",
    env: dict[str, str] | None = None,
    timeout_s: float = WAIT_S,
) -> Result:
    """Run a command in a pipe, to its end."""
    done = subprocess.run(
        [*PENSTOCK, *arguments],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        env=env or clean_environment(),
        check=False,
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


class Terminal:
    """A command on a pseudo-terminal: it believes that a person watches."""

    def __init__(
        self, *arguments: str, cwd: Path, width: int = 100, env: dict[str, str] | None = None
    ) -> None:
        self._screen, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        self.process = subprocess.Popen(
            [*PENSTOCK, *arguments],
            cwd=cwd,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=clean_environment(TERM="xterm-256color", **(env or {})),
            start_new_session=True,
            # The terminal becomes the controlling one, so that Ctrl-C means something.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.raw = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *rest: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._screen)

    @property
    def text(self) -> str:
        """What is to be read, without colours and movements."""
        return _ESCAPES.sub("", self.raw).replace("\r", "")

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def wait_for(self, seen: str | Callable[[str], bool]) -> Self:
        """Read until the text is on the screen."""
        there = (lambda text: seen in text) if isinstance(seen, str) else seen
        deadline = time.monotonic() + WAIT_S
        while not there(self.text):
            assert time.monotonic() < deadline, f"not seen: {seen!r}; the screen: {self.text!r}"
            if not self._read(0.1):
                assert there(self.text), f"ended without {seen!r}; the screen: {self.text!r}"
        return self

    def seen(self, text: str) -> bool:
        """Whether the text is on the screen by now."""
        self._read(0.05)
        return text in self.text

    def finish(self) -> int:
        """Read until the command ends; its exit code."""
        deadline = time.monotonic() + WAIT_S
        while self._read(0.1):
            assert time.monotonic() < deadline, f"does not end; the screen: {self.text!r}"
        return self.process.wait(WAIT_S)

    def _read(self, timeout_s: float) -> bool:
        """False at the end."""
        ready, _, _ = select.select([self._screen], [], [], timeout_s)
        if not ready:
            return True
        try:
            data = os.read(self._screen, 65536)
        except OSError:  # the other side has closed it
            return False
        self.raw += data.decode(errors="replace")
        return bool(data)
