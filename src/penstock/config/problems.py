"""Mistakes in a flow file: each with its place, all of them reported at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from penstock.config.spelling import nearest
from penstock.errors import ConfigError
from penstock.limits import MAX_PROBLEMS

Severity = Literal["error", "warning"]

_MAX_SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in the file; both count from 1. Line 0 stands for the whole file.

    `source` names what it came from when that is not the file: a variable, an option.
    """

    line: int = 0
    column: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, where, and what to do. `file` names a file, a variable or an option."""

    file: str
    line: int
    column: int
    message: str
    hint: str | None = None
    severity: Severity = "error"

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        hint = f" ({self.hint})" if self.hint else ""
        return f"{place}: {self.severity}: {self.message}{hint}"


class FlowFileError(ConfigError):
    """A flow file cannot be used. `problems` has every mistake found (warnings too), by place.

    `source` is the file's text where it could be read: for showing the lines in question.
    """

    def __init__(self, problems: list[Problem], source: str | None = None) -> None:
        self.problems = problems
        self.source = source
        super().__init__("\n".join(map(str, problems)))


class Problems:
    """Collects problems of one file. Past the limit they are only counted."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._found: dict[Problem, None] = {}
        self._uncounted = 0

    def add(
        self,
        mark: Mark,
        message: str,
        hint: str | None = None,
        *,
        severity: Severity = "error",
    ) -> None:
        if len(self._found) >= MAX_PROBLEMS:
            self._uncounted += 1
            return
        file = mark.source or self.file
        problem = Problem(file, mark.line, mark.column, message, hint, severity)
        # An alias makes the same mistake appear wherever it is used.
        self._found[problem] = None

    def suggest(self, wrong: str, right: Sequence[str]) -> str | None:
        """A hint with the nearest right spelling; none once problems are only counted."""
        if len(self._found) >= MAX_PROBLEMS:
            return None  # a search for each of many thousands would take its time
        return did_you_mean(nearest(wrong, right))

    def warn(self, mark: Mark, message: str, hint: str | None = None) -> None:
        self.add(mark, message, hint, severity="warning")

    def __len__(self) -> int:
        return len(self._found) + self._uncounted

    @property
    def any_error(self) -> bool:
        return any(problem.severity == "error" for problem in self._found)

    def sorted(self) -> list[Problem]:
        found = sorted(self._found, key=lambda p: (p.file != self.file, p.line, p.column))
        if self._uncounted:
            more = f"and {self._uncounted} more problems, not shown"
            found.append(Problem(self.file, 0, 0, more))
        return found


def quoted(text: str) -> str:
    """A piece of the file, short and printable, in back quotes."""
    shown = text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 1] + "…"
    return "`" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown) + "`"


def did_you_mean(right: str | None) -> str | None:
    """The hint, if there is anything to suggest."""
    return f"did you mean {quoted(right)}?" if right else None
