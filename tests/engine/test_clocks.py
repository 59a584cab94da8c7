"""How far time has come, as links with state are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.engine.clocks import Clocks
from penstock.limits import CLOCK_MARGIN_S
from penstock.spark.clock import read_clock


@dataclass
class Piece:
    clock: Path | None
    decided: dict[tuple[str, int], int] = field(default_factory=dict)
    topic: dict[tuple[str, int], int] = field(default_factory=dict)

    def ends(self) -> dict[tuple[str, int], int]:
        return dict(self.topic)


def told_s(path: Path) -> float:
    return read_clock(path) / 1_000_000 + CLOCK_MARGIN_S


def test_time_waits_for_messages_before_and_behind_a_cut(tmp_path: Path) -> None:
    now = [100.0]
    first, behind = Piece(None), Piece(tmp_path / "clock")
    first.topic["web", 0] = 5
    clocks = Clocks([first, behind], lambda: now[0])
    now[0] = 200.0
    clocks.look()
    assert read_clock(tmp_path / "clock") == 0, "the receiver's messages are still to be read"
    behind.topic["cut", 0] = 5
    first.decided["web", 0] = 5
    clocks.look()
    assert read_clock(tmp_path / "clock") == 0, "they are in the cut"
    first.topic["web", 0] = 9  # what comes later does not hold it back
    behind.decided["cut", 0] = 5
    clocks.look()
    assert told_s(tmp_path / "clock") == 100.0
    clocks.look()
    assert told_s(tmp_path / "clock") == 100.0, "of the next moment, messages are not through"
    first.decided["web", 0] = 9
    clocks.look()
    assert told_s(tmp_path / "clock") == 200.0


def test_a_piece_that_waits_for_nothing_is_told_nothing(tmp_path: Path) -> None:
    piece = Piece(None)
    Clocks([piece], lambda: 50.0).look()
    assert list(tmp_path.iterdir()) == []
