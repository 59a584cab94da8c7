"""Structured logs: an event in a few words, and fields. One line each, to stderr.

Three shapes of the same record: short and coloured on a terminal, `key=value` in a pipe, one JSON
object a line with `log_format="json"`. No payloads and no secrets are ever logged; values that came
from outside (addresses, names) are quoted so that they cannot forge a line.

    log = logs.get("edge")
    log.info("receiver is open", peer="web", address="127.0.0.1:7071")
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import sys
import traceback
from typing import Any, Literal, TextIO

import orjson

LogFormat = Literal["auto", "plain", "json"]
LEVELS = ("debug", "info", "warning", "error")

_ROOT = "penstock"
_COLOURS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "31"}


class Logger:
    """A named source of log lines. Fields are keyword arguments; None is left out."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, **fields: Any) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException, **fields: Any) -> None:
        """For what was not foreseen: with the way it came."""
        self._log(
            logging.ERROR, event, {**fields, "error": describe(error), "trace": _trace(error)}
        )

    def _log(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"penstock_fields": fields})


def get(name: str) -> Logger:
    return Logger(logging.getLogger(f"{_ROOT}.{name}"))


def configure(
    level: str = "info",
    log_format: str = "auto",
    *,
    process: str = "penstock",
    stream: TextIO | None = None,
) -> None:
    """Send everything from `level` up to `stream` (stderr). Called once a process; again replaces.

    `process` names this process in every line: "supervisor", "edge-0", "keeper". Other libraries'
    warnings take the same way out.
    """
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    handler.setFormatter(_formatter(log_format, process, target))
    logging.raiseExceptions = False  # a closed stderr must not disturb the program
    foreign = logging.getLogger()
    foreign.handlers[:] = [handler]
    foreign.setLevel(logging.WARNING)
    ours = logging.getLogger(_ROOT)
    ours.setLevel(level.upper())


def describe(error: BaseException) -> str:
    """One line that says what went wrong, also for errors without a message."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror}{where}"
    return text if text else type(error).__name__


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def _formatter(log_format: str, process: str, stream: TextIO) -> logging.Formatter:
    if log_format == "json":
        return _JsonFormatter(process)
    if log_format == "auto" and stream.isatty():
        return _TerminalFormatter(process, colour=not os.environ.get("NO_COLOR"))
    return _PlainFormatter(process)


def _time(record: logging.LogRecord) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(record.created, datetime.UTC)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "penstock_fields", {})
    if record.exc_info and record.exc_info[1] is not None:
        fields = {**fields, "trace": _trace(record.exc_info[1])}
    return {name: value for name, value in fields.items() if value is not None}


def _quoted(value: Any) -> str:
    """Bare when harmless, else a JSON string: no newline or control character gets through."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = str(value)
    if text and text.isprintable() and not any(mark in text for mark in ' "=\\'):
        return text
    return ascii_json(text)


def ascii_json(text: str) -> str:
    """A JSON string in which everything that a terminal could act on is escaped."""
    quoted = orjson.dumps(text.encode("utf-8", "replace").decode()).decode()
    return "".join(c if c.isprintable() else _escape(c) for c in quoted)


def _escape(char: str) -> str:
    code = ord(char)
    if code > 0xFFFF:
        code -= 0x10000
        return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
    return f"\\u{code:04x}"


class _PlainFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        time = _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        words = [
            f"time={time}",
            f"level={record.levelname.lower()}",
            f"process={self._process}",
            f"event={_quoted(record.getMessage())}",
        ]
        words += [f"{name}={_quoted(value)}" for name, value in _fields(record).items()]
        return " ".join(words)


class _TerminalFormatter(logging.Formatter):
    def __init__(self, process: str, *, colour: bool) -> None:
        super().__init__()
        self._process = process
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        time = _time(record).astimezone().strftime("%H:%M:%S")
        event = record.getMessage()
        head = f"{self._paint(time, '2')} {self._paint(f'{level:7}', _COLOURS[level])}"
        fields = _fields(record)
        trace = fields.pop("trace", None)
        words = [
            f"{self._paint(name + '=', '2')}{_quoted(value)}" for name, value in fields.items()
        ]
        line = " ".join([head, self._paint(self._process, "36"), _printable(event), *words])
        # People read a trace as lines; a pipe gets it quoted on the one line of its record.
        return line if trace is None else f"{line}\n{trace.rstrip()}"

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": record.getMessage(),
            **_fields(record),
        }
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # a huge number, or text that is no Unicode: no reason to lose the line
            return json.dumps(line, default=str)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii_json(text)
