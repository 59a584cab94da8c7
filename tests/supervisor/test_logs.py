"""Log lines: one line a record in a pipe, whatever the values hold."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import logs


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _written(log_format: str, event: str, **fields: object) -> str:
    stream = io.StringIO()
    logs.configure("debug", log_format, process="edge-0", stream=stream)
    logs.get("edge").info(event, **fields)
    return stream.getvalue()


def test_a_plain_line_names_the_process_and_the_fields() -> None:
    line = _written("plain", "receiver is open", peer="web", address="127.0.0.1:7071")
    assert line.endswith(
        'level=info process=edge-0 event="receiver is open" peer=web address=127.0.0.1:7071\n'
    )


def test_json_lines_hold_the_fields_as_values() -> None:
    line = orjson.loads(_written("json", "stopped", restarts=3, clean=True))
    assert line["event"] == "stopped"
    assert line["process"] == "edge-0"
    assert (line["restarts"], line["clean"]) == (3, True)


def test_fields_without_a_value_are_left_out() -> None:
    assert "pid" not in _written("plain", "started", pid=None)


def test_what_is_below_the_level_is_not_written() -> None:
    stream = io.StringIO()
    logs.configure("warning", "plain", process="p", stream=stream)
    logs.get("edge").info("not this")
    logs.get("edge").warning("but this")
    assert "but this" in stream.getvalue()
    assert "not this" not in stream.getvalue()


def test_other_libraries_warnings_take_the_same_way_out() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", process="p", stream=stream)
    logging.getLogger("somebody.else").warning("watch %s", "out")
    assert orjson.loads(stream.getvalue())["event"] == "watch out"


def test_an_unforeseen_error_is_written_with_its_trace_on_one_line() -> None:
    stream = io.StringIO()
    logs.configure("info", "plain", process="p", stream=stream)
    try:
        raise RuntimeError("two\nlines")
    except RuntimeError as error:
        logs.get("edge").exception("gave up", error)
    assert stream.getvalue().count("\n") == 1
    assert 'error="two lines"' in stream.getvalue()
    assert "RuntimeError" in stream.getvalue()


@given(st.text(), st.text())
def test_no_value_can_forge_a_line_or_move_the_cursor(event: str, value: str) -> None:
    for log_format in ("plain", "json"):
        line = _written(log_format, event, value=value)
        assert line.endswith("\n")
        body = line[:-1]
        assert all(char.isprintable() or log_format == "json" for char in body)
        assert "\n" not in body
        assert "\x1b" not in body


@given(st.text(), st.integers() | st.floats(allow_nan=False) | st.text() | st.none())
def test_json_lines_can_always_be_read_back(event: str, value: object) -> None:
    assert "event" in orjson.loads(_written("json", event, value=value))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(13, "Permission denied", "/x"), "Permission denied: /x"),
        (ValueError("wrong\n  thing"), "wrong thing"),
        (KeyError(), "KeyError"),
    ],
)
def test_every_error_has_a_description(error: Exception, text: str) -> None:
    assert logs.describe(error) == text
