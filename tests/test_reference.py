"""The reference pages say what the code says."""

from __future__ import annotations

from tools.reference import FOLDER, pages


def test_the_reference_pages_are_up_to_date() -> None:
    stale = [name for name, text in pages().items() if _written(name) != text.rstrip() + "\n"]
    assert not stale, "run `make docs`"


def _written(name: str) -> str:
    path = FOLDER / name
    return path.read_text() if path.exists() else ""
