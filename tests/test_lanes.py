"""`make test` runs every test: what is in no lane would never be seen to fail."""

from __future__ import annotations

from pathlib import Path

from tools.lanes import TESTS, lanes


def test_every_file_of_tests_is_in_one_lane() -> None:
    found = [path for arguments in lanes().values() for path in _files(arguments)]
    assert sorted(found) == sorted(TESTS.rglob("test_*.py"))


def _files(arguments: list[str]) -> set[Path]:
    """What pytest collects of the paths it is given."""
    ignored = {Path(one.split("=", 1)[1]) for one in arguments if one.startswith("--ignore=")}
    given = [Path(one) for one in arguments if not one.startswith("--")]
    assert all(path.exists() for path in [*given, *ignored])
    files = {
        file for path in given for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    }
    return {file for file in files if not ignored & {file, *file.parents}}
