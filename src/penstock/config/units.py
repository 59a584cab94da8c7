"""Sizes and durations as people write them: `64KiB`, `10 MB`, `500ms`, `7d`."""

from __future__ import annotations

import re

_SIZE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_DURATION_UNITS = {
    "": 1.0,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
    "w": 604_800.0,
}

# ASCII digits only, and few enough that no number is costly to parse.
_NUMBER = r"[0-9]{1,18}(?:\.[0-9]{1,9})?"
SIZE_PATTERN = rf"^\s*{_NUMBER}\s*([kKmMgGtT][iI]?)?[bB]?\s*$"
DURATION_PATTERN = rf"^\s*{_NUMBER}\s*(ms|s|m|h|d|w)?\s*$"
_SIZE = re.compile(rf"\s*({_NUMBER})\s*([a-zA-Z]*)\s*")


def parse_size(value: object) -> object:
    """A number of bytes. What is not text is left for the model to judge."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    unit = match[2].upper() if match else None
    if unit in {"K", "M", "G", "T", "KI", "MI", "GI", "TI"}:
        unit += "B"
    if match is None or unit not in _SIZE_UNITS:
        raise ValueError("expected a size in bytes, such as 65536, 64KiB or 10MB")
    # Whole numbers stay whole: a float would lose bytes past 2**53.
    size = (
        float(match[1]) * _SIZE_UNITS[unit]
        if "." in match[1]
        else int(match[1]) * _SIZE_UNITS[unit]
    )
    if size != int(size):
        raise ValueError("expected a whole number of bytes")
    return int(size)


def parse_duration(value: object) -> object:
    """A number of seconds. What is not text is left for the model to judge."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None or match[2] not in _DURATION_UNITS:
        raise ValueError("expected a time in seconds, such as 10, 0.5, 500ms, 5m, 2h or 7d")
    return float(match[1]) * _DURATION_UNITS[match[2]]


def show_size(size_bytes: int) -> str:
    """The shortest exact spelling: 65536 is `64KiB`, 8192 is `8KiB`, 1000 is `1000`."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)
