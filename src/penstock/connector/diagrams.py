"""State diagrams, drawn from the tables. `tools/diagrams.py` puts them into the reference page."""

from __future__ import annotations

from penstock.connector.states import OVER, State, Table


def mermaid(table: Table) -> str:
    """A state diagram in Mermaid's language: one arrow for each pair of states."""
    lines = ["stateDiagram-v2", f"    [*] --> {_name(next(iter(table)))}"]
    lines += [f"    {_name(state)}: {state}" for state in table]
    for state, steps in table.items():
        for following in table:
            labels = [f"{side} {signal}" for (side, signal), to in steps.items() if to is following]
            # Ends look the same from everywhere: the page says so once.
            if labels and not (following in OVER and _is_common_end(labels)):
                lines.append(f"    {_name(state)} --> {_name(following)}: {', '.join(labels)}")
    return "\n".join(lines)


def rows(table: Table) -> str:
    """The same as a table in Markdown: every allowed step, in the order of the code."""
    lines = ["| state | who | says | next state |", "|---|---|---|---|"]
    for state, steps in table.items():
        lines += [
            f"| {state} | {side} | {signal} | {following} |"
            for (side, signal), following in steps.items()
        ]
    return "\n".join(lines)


def _is_common_end(labels: list[str]) -> bool:
    return all(label.endswith(("ERROR", "the connection closes")) for label in labels)


def _name(state: State) -> str:
    return state.name
