"""Where to begin reading: what `--from` may say."""

from __future__ import annotations

import datetime
import re
import time
from dataclasses import dataclass

from penstock.config.units import parse_duration
from penstock.errors import ConfigError
from penstock.log.interface import Reader

_MAX_OFFSET = 2**63 - 1
_AGO = re.compile(r"(.*?)\s*ago", re.IGNORECASE)
_EXPECTED = "expected beginning, end, an offset, a time (2026-01-31T12:00:00Z), or how long ago (10m, 2h, 7d)"


@dataclass(frozen=True, slots=True)
class Position:
    """One of three: an offset, a time, or the end (both None)."""

    offset: int | None = None
    time_us: int | None = None

    @classmethod
    def parse(cls, text: str, now_s: float | None = None) -> Position:
        """`now_s` is what `10m` is counted back from. A time without a zone is local time."""
        word = text.strip()
        if word.lower() == "beginning":
            return cls(offset=0)
        if word.lower() == "end":
            return cls()
        if word.isascii() and word.isdigit():
            if len(word) > 19 or int(word) > _MAX_OFFSET:
                raise ConfigError(f"--from {word[:40]}: no offset is that large")
            return cls(offset=int(word))
        time_us = _ago(word, time.time() if now_s is None else now_s) or _moment(word)
        if time_us is None:
            raise ConfigError(f"--from {text[:80]!r}: {_EXPECTED}")
        return cls(time_us=time_us)

    def offset_in(self, reader: Reader) -> int:
        """The offset it stands for in one partition."""
        if self.offset is not None:
            return max(self.offset, reader.begin())
        if self.time_us is not None:
            return reader.offset_at(self.time_us)
        return reader.end()


def _ago(word: str, now_s: float) -> int | None:
    match = _AGO.fullmatch(word)
    try:
        ago_s = parse_duration(match[1] if match else word)
    except ValueError:
        return None
    assert isinstance(ago_s, float)
    return max(1, int((now_s - ago_s) * 1e6))


def _moment(word: str) -> int | None:
    try:
        moment = datetime.datetime.fromisoformat(word)
        return int(moment.timestamp() * 1e6)
    except (ValueError, OverflowError, OSError):
        return None
