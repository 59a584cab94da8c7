"""A program that votes to roll back is there: that is told apart from one that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.sdk import Fault, TwoPhaseSink
from penstock.sinks.interface import SinkRefuses, SinkUnavailable

from .contract import FIRST, prepare
from .test_connector import connector


def test_a_vote_against_is_an_answer(tmp_path: Path) -> None:
    with TwoPhaseSink(tmp_path / "s", cookie="secret", faults=[Fault("vote_no")]) as program:
        sink = connector(program.listen()[1], tmp_path / "d")
        with pytest.raises(SinkRefuses, match="voted to roll back"):
            prepare(sink, FIRST, b"a")
    with pytest.raises(SinkUnavailable) as gone:
        prepare(sink, FIRST, b"a")
    assert not isinstance(gone.value, SinkRefuses)
