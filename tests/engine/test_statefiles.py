"""Whether Spark's checkpoint and the decisions fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.engine.statefiles import StateFiles
from penstock.errors import StateLost
from penstock.flow.decisions import Decision, Decisions


def standing(folder: Path, decided: int, planned: int, done: int) -> StateFiles:
    """So many batches, from number 0 on, of a piece that has begun."""
    decisions = Decisions(folder)
    StateFiles(folder, decisions, "unique").open()
    for number in range(decided + 1):
        decisions.decide(Decision(number, {}))
        decisions.finished(number)
    for name, last in (("offsets", planned), ("commits", done)):
        (folder / "checkpoint" / name).mkdir(parents=True)
        for batch in range(last + 1):
            (folder / "checkpoint" / name / str(batch)).write_text("v1")
    return StateFiles(folder, decisions, "unique")


@pytest.mark.parametrize(
    ("decided", "planned", "done"), [(-1, -1, -1), (4, 4, 4), (4, 5, 4), (4, 4, 3)]
)
def test_what_a_kill_can_leave_is_carried_on(
    tmp_path: Path, decided: int, planned: int, done: int
) -> None:
    files = standing(tmp_path, decided, planned, done)
    files.open()
    assert files.number(7) == 7
    files.sync()


@pytest.mark.parametrize(
    ("decided", "planned", "done"), [(4, -1, -1), (4, 3, 3), (4, 6, 4), (3, 5, 5), (5, 3, 2)]
)
def test_what_only_lost_or_mixed_files_can_be_is_refused(
    tmp_path: Path, decided: int, planned: int, done: int
) -> None:
    files = standing(tmp_path, decided, planned, done)
    with pytest.raises(StateLost, match=f"unique: .* up to batch {decided}, .*Restore {tmp_path}"):
        files.open()
    # As it says: without the file, state begins anew, with the next number.
    (tmp_path / "state").unlink()
    files.open()
    assert files.number(0) == decided + 1
    assert not (tmp_path / "checkpoint" / "offsets").exists()
