"""What `--from` understands."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.positions import Position
from penstock.errors import ConfigError

NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(offset=0)),
        ("End", Position()),
        ("0", Position(offset=0)),
        ("41", Position(offset=41)),
        ("2026-01-01T00:00:00Z", Position(time_us=1_767_225_600_000_000)),
        ("2026-01-01T01:00:00.5+01:00", Position(time_us=1_767_225_600_500_000)),
        ("10m", Position(time_us=1_767_225_000_000_000)),
        ("2h ago", Position(time_us=1_767_218_400_000_000)),
        ("1.5s", Position(time_us=1_767_225_598_500_000)),
    ],
)
def test_a_position_is_understood(text: str, position: Position) -> None:
    assert Position.parse(text, NOW_S) == position


@pytest.mark.parametrize(
    "text", ["", "-1", "later", "10 parsecs", "2026-13-01", "1" * 30, "٣", "2026-01-01T99:00"]
)
def test_anything_else_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ConfigError, match="--from"):
        Position.parse(text, NOW_S)


@given(st.datetimes(min_value=datetime.datetime(1971, 1, 1), timezones=st.just(datetime.UTC)))
def test_every_time_python_writes_is_read_back(moment: datetime.datetime) -> None:
    position = Position.parse(moment.isoformat(), NOW_S)
    assert position.time_us is not None
    assert abs(position.time_us - moment.timestamp() * 1e6) <= 64  # floating point, far out


@given(st.text())
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        position = Position.parse(text, NOW_S)
    except ConfigError:
        return
    assert isinstance(position, Position)
