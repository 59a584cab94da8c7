"""State diagrams, drawn from the tables. `tools/diagrams.py` puts them into the reference page.

ERROR and the end of the connection are left out: they are allowed everywhere, and the page says so once.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.connector.states import Side, Signal, State, Table

_EVERYWHERE = (Signal.ERROR, Signal.CLOSED)


def mermaid(table: Table) -> str:
    """A state diagram in Mermaid's language: one arrow for each pair of states."""
    lines = ["stateDiagram-v2", f"    [*] --> {next(iter(table)).name}"]
    lines += [f"    {state.name}: {state}" for state in table]
    arrows: dict[tuple[State, State], list[str]] = {}
    for state, side, signal, following in _steps(table):
        arrows.setdefault((state, following), []).append(f"{side} {signal}")
    for (state, following), labels in arrows.items():
        lines.append(f"    {state.name} --> {following.name}: {', '.join(labels)}")
    return "\n".join(lines)


def rows(table: Table) -> str:
    """The same as a table in Markdown: every allowed step, in the order of the code."""
    lines = ["| state | who | says | next state |", "|---|---|---|---|"]
    lines += [f"| {a} | {side} | {signal} | {b} |" for a, side, signal, b in _steps(table)]
    return "\n".join(lines)


def _steps(table: Table) -> Iterator[tuple[State, Side, Signal, State]]:
    for state, steps in table.items():
        for (side, signal), following in steps.items():
            if signal not in _EVERYWHERE:
                yield state, side, signal, following
