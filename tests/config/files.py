"""Flow files as text, and the place of a mistake marked in the text itself."""

from __future__ import annotations

from pathlib import Path

from penstock.config import Flow, Loaded, Problem, inspect_bytes
from penstock.flow.components import registry

HERE = "«"
"""Stands right before the place where a problem must be reported."""

WEB = "{module: receiver.http, params: {bind: 127.0.0.1:7071}}"
OUT = "{module: sink.dumper}"
TINY = f"components: {{web: {WEB}, out: {OUT}}}\npipeline: {{web: {{connect: out}}}}\n"


def place_of(text: str) -> tuple[str, int, int]:
    """The text without the mark, and the line and column it stood at."""
    before, _, after = text.partition(HERE)
    line = before.count("\n") + 1
    return before + after, line, len(before) - (before.rfind("\n") + 1) + 1


def look_at(
    text: str | bytes,
    *,
    path: str | Path = "orders.yaml",
    env: dict[str, str] | None = None,
    overrides: dict[str, str] | None = None,
) -> Loaded:
    data = text.encode() if isinstance(text, str) else text
    return inspect_bytes(
        data, path, registry=registry(), environment=env or {}, overrides=overrides
    )


def flow_of(text: str, **options: object) -> Flow:
    loaded = look_at(text, **options)  # type: ignore[arg-type]
    assert loaded.flow is not None, "\n".join(map(str, loaded.problems))
    return loaded.flow


def only_problem(text: str, **options: object) -> Problem:
    """The one problem of a file with one mistake, which is where the text has the mark."""
    marked = HERE in text
    plain, line, column = place_of(text)
    problems = look_at(plain, **options).problems  # type: ignore[arg-type]
    assert len(problems) == 1, "\n".join(map(str, problems))
    if marked:
        assert (problems[0].line, problems[0].column) == (line, column), str(problems[0])
    return problems[0]
