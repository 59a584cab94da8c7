"""The reference page shows the tables as they are."""

from __future__ import annotations

from penstock.connector.frames import FrameType
from penstock.connector.states import TABLES
from penstock.connector.two_phase import TwoPhaseType
from tools.diagrams import PAGE, drawn


def test_the_diagrams_are_up_to_date():
    page = PAGE.read_text()
    assert drawn(page) == page, "run: python tools/diagrams.py"


def test_every_state_is_in_its_diagram():
    page = PAGE.read_text()
    for table in TABLES.values():
        for state in table:
            assert f"    {state.name}: {state}" in page


def test_every_frame_is_on_the_page():
    page = PAGE.read_text()
    for kind in (*FrameType, *TwoPhaseType):
        assert f"| {int(kind)} | {kind.name} | " in page
