"""What a run leaves: a JSON file with every raw number, a plot, a table on the terminal."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

from bench.suite import Row

MET, MISSED, PLAIN = "#2b7a4b", "#b3392c", "#7a8793"


def table(rows: list[Row]) -> str:
    """Plain text, one line a number, the missing ones with their reason."""
    lines = [("", "number", "goal", "rounds", "", "")]
    for row in rows:
        remark = row.missing or row.note
        lines.append((row.name, number(row), goal(row), spread(row), row.verdict, remark))
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    out = []
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [line[column].rjust(widths[column]) for column in (1, 2, 3)]
        cells += [line[column].ljust(widths[column]) for column in (4, 5)]
        out.append("  ".join(cells).rstrip())
    return "\n".join(out)


def number(row: Row) -> str:
    return _quantity(row.value, row) if row.rounds else "-"


def goal(row: Row) -> str:
    if row.goal is None:
        return ""
    return ("≤ " if row.at_most else "≥ ") + _quantity(row.goal, row)


def spread(row: Row) -> str:
    if len(row.rounds) < 2:
        return ""
    return f"{_digits(min(row.rounds), row)} to {_digits(max(row.rounds), row)}"


def _quantity(value: float, row: Row) -> str:
    return _digits(value, row) + ("x" if row.unit == "x" else f" {row.unit}")


def _digits(value: float, row: Row) -> str:
    """Rounded away from the goal: a share of 0.9999 must not read as 1, nor 1.1004 as 1.1."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    toward = math.ceil if row.at_most else math.floor
    return f"{toward(round(value * 1000, 6)) / 1000:g}"


def write_json(path: Path, document: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def plot(path: Path, rows: list[Row], title: str) -> bool:
    """Every number that has a goal, as a multiple of that goal; False without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("  no plot: matplotlib is not installed")
        return False
    mpl.use("svg")
    import matplotlib.pyplot as plt

    shown = [row for row in rows if row.goal and row.rounds][::-1]
    figure, axes = plt.subplots(figsize=(11, 1.2 + 0.42 * max(1, len(shown))))
    every = [1.0]
    for place, row in enumerate(shown):
        colour = MET if row.verdict == "met" else MISSED
        reached = [_reached(row, value) for value in row.rounds]
        middle = _reached(row, row.value)
        every += reached
        axes.barh(place, middle - 1, left=1, color=colour, alpha=0.4, height=0.6)
        axes.plot(reached, [place] * len(reached), "o", color=PLAIN, markersize=3)
        axes.plot(middle, place, "D", color=colour, markersize=6)
        label = f"{number(row)}  (goal {goal(row)})"
        axes.annotate(label, (max([1.0, middle, *reached]), place), (8, 0), va="center", fontsize=8,
                      textcoords="offset points")  # fmt: skip
    axes.axvline(1.0, color="black", linewidth=1)
    axes.set_yticks(range(len(shown)), [row.name for row in shown], fontsize=8)
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(0.45, 0.9 * min(every)), 4 * max(every))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("times its goal (further right is better; small dots are rounds)", fontsize=8)
    axes.set_title(title, fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    return True


def _reached(row: Row, value: float) -> float:
    """How many times over the goal is met, in whichever direction it points."""
    assert row.goal is not None
    tiny = 1e-9
    return row.goal / max(value, tiny) if row.at_most else max(value, tiny) / row.goal


def publish(json_path: Path, svg_path: Path, results: Path) -> None:
    """Make this run the one that `latest` means."""
    shutil.copyfile(json_path, results / "latest.json")
    if svg_path.exists():
        shutil.copyfile(svg_path, results / "latest.svg")
