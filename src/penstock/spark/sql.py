"""Pieces of Spark SQL, as text. Text crosses to the JVM in one call; a tree of columns in one a node."""

from __future__ import annotations

from collections.abc import Iterable


def text(value: str) -> str:
    """A string literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def name(column: str) -> str:
    """A column's name, whatever is in it."""
    return "`" + column.replace("`", "``") + "`"


def options(found: dict[str, str]) -> str:
    """The options of `from_json` and its like."""
    pairs = ", ".join(f"{text(key)}, {text(value)}" for key, value in found.items())
    return f"map({pairs})"


def case(subject: str, cases: Iterable[tuple[str, str]], other: str) -> str:
    """`CASE subject WHEN ... THEN ... ELSE other END`, or just `other` if there are no cases."""
    whens = " ".join(f"WHEN {value} THEN {result}" for value, result in cases)
    return f"CASE {subject} {whens} ELSE {other} END" if whens else other
