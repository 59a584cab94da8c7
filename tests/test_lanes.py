"""`make test` runs every test: what is in no lane would never be seen to fail."""

from __future__ import annotations

from tools.lanes import TESTS, lanes


def test_every_folder_of_tests_is_in_one_lane() -> None:
    *chosen, rest = lanes().values()
    taken = [path for paths in chosen for path in paths]
    assert len(set(taken)) == len(taken)
    assert rest == [str(TESTS), *(f"--ignore={path}" for path in taken)]
    assert sorted(taken) == [str(path) for path in sorted(TESTS.iterdir()) if str(path) in taken]
