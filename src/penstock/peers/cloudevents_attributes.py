"""The attributes of a CloudEvent: their names, their types, and how a header carries them."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final
from urllib.parse import unquote_to_bytes

from penstock.errors import InvalidMessage

REQUIRED: Final = ("id", "source", "specversion", "type")

_NAME: Final = re.compile(r"[a-z0-9]+")
# Control characters, surrogates without a partner, and code points that are no characters.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(
        chr(plane | last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF)
    )
    + "]"
)
# One class repeated, and `%` looked at apart: a repeated group would take memory for every character.
_URI_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_URI_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_WORD: Final = r"[!#$%&'*+.^_`|~0-9A-Za-z\-]+"
_MEDIA_TYPE: Final = re.compile(rf"({_WORD})/({_WORD})\s*(?:;.*)?")
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):([0-5]\d|60)(?:\.\d+)?([Zz]|[+\-]\d\d:\d\d)", re.ASCII
)
_QUOTED: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_BAD_PERCENT: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def check_name(name: str) -> None:
    """InvalidMessage unless an attribute may have this name."""
    if name == "data" or not _NAME.fullmatch(name):
        raise InvalidMessage(
            f"CloudEvent: {name[:40]!r} cannot be an attribute; names are lower-case letters a-z and "
            "digits, and not 'data'"
        )


def to_meta(attributes: dict[str, str]) -> dict[str, str]:
    """Checked attributes, under the names that they have in meta."""
    version = attributes.get("specversion")
    if version is not None and version != "1.0":
        raise InvalidMessage(
            f"CloudEvent: specversion is {version[:20]!r}; only '1.0' is read here"
        )
    for name in REQUIRED:
        if name not in attributes:
            raise InvalidMessage(f"CloudEvent: the attribute {name!r} is missing")
    for name, value in attributes.items():
        _check_value(name, value)
    return {f"ce_{name}": value for name, value in attributes.items()}


def _check_value(name: str, value: str) -> None:
    # What is printable has none of them, and telling so is much faster than the search.
    forbidden = None if value.isprintable() else _FORBIDDEN.search(value)
    if forbidden is not None:
        raise InvalidMessage(
            f"CloudEvent: {name!r} has a character that no attribute may have: "
            f"U+{ord(forbidden[0]):04X}"
        )
    expected = TYPED.get(name)
    if expected is not None and not expected[1](value):
        raise InvalidMessage(f"CloudEvent: {name!r} must be {expected[0]}: {value[:80]!r}")


def _is_text(value: str) -> bool:
    return bool(value)


def _is_uri_reference(value: str) -> bool:
    return _URI_CHARACTERS.fullmatch(value) is not None and not _URI_BAD_PERCENT.search(value)


def _is_uri(value: str) -> bool:
    return _is_uri_reference(value) and _SCHEME.match(value) is not None


def _is_media_type(value: str) -> bool:
    return _MEDIA_TYPE.fullmatch(value) is not None


def _is_time(value: str) -> bool:
    match = _TIME.fullmatch(value)
    if match is None:
        return False
    day, minute, _, zone = match.groups()
    try:
        # A leap second is a second of its minute; the library knows 59 at most.
        datetime.fromisoformat(f"{day}T{minute}:00{zone.upper()}")
    except ValueError:
        return False
    return True


TYPED: Final = {
    "id": ("a text that is not empty", _is_text),
    "type": ("a text that is not empty", _is_text),
    "subject": ("a text that is not empty", _is_text),
    "source": ("a URI reference (RFC 3986)", _is_uri_reference),
    "dataschema": ("an absolute URI (RFC 3986)", _is_uri),
    "datacontenttype": ("a media type (RFC 2046)", _is_media_type),
    "time": ("a time as RFC 3339 has it (2018-04-05T17:31:00Z)", _is_time),
}


def header_text(name: str, value: bytes) -> str:
    """Quotes of older senders undone first, then one round of percent-decoding."""
    if b'"' in value:
        if b'"' in _QUOTED.sub(b"", value):
            raise InvalidMessage(f"CloudEvent: the header ce-{name} has a quote that does not end")
        value = _QUOTED.sub(lambda quoted: _ESCAPED.sub(rb"\1", quoted[1]), value)
    if b"%" in value:
        if _BAD_PERCENT.search(value):
            raise InvalidMessage(
                f"CloudEvent: the header ce-{name} has a % without two hexadecimal digits after it"
            )
        value = unquote_to_bytes(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidMessage(f"CloudEvent: the header ce-{name} is not UTF-8") from None


def is_json(content_type: str) -> bool:
    """Whether a media type, already checked, says that the data are JSON."""
    match = _MEDIA_TYPE.fullmatch(content_type)
    assert match is not None
    subtype = match[2].lower()
    return subtype == "json" or subtype.endswith("+json")
