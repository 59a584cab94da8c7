"""Imports go one way: down the layout's list to its top, never back up."""

from __future__ import annotations

import ast
from pathlib import Path

import penstock

ORDER = [
    ("version", "limits", "errors", "status", "guarantee", "message", "logs", "faults", "disk"),
    ("config",),
    ("codecs",),
    ("interceptors",),
    ("log",),
    ("connector",),
    ("peers", "links"),  # which know nothing of each other
    ("sinks",),
    ("flow",),
    ("spark",),
    ("groups", "transactions", "workflows"),
    ("edge", "engine", "supervisor"),
    ("admin",),
    ("sdk",),
    ("testing",),
    ("cli",),
]
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
ROOT = Path(penstock.__file__).parent


def imported(path: Path) -> set[str]:
    """The parts of Penstock that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("penstock.")}
    return found & set(RANK)


def test_every_import_points_down_the_layout() -> None:
    wrong = []
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in RANK, f"{path}: give it a place in the layout"
        for other in imported(path) - {part}:
            above = RANK[other] > RANK[part]
            twins = RANK[other] == RANK[part] and part in ("peers", "links")
            if above or twins:
                wrong.append(f"{path.relative_to(ROOT)} imports penstock.{other}")
    assert wrong == []
