"""CloudEvents 1.0 over HTTP, without any HTTP: headers or a body in, payloads and meta out.

An attribute `x` of an event becomes the meta key `ce_x`, as text. The payload is the event's data:

- binary mode: the body, whatever it is;
- structured and batch mode: `data_base64` decoded; `data` as the very JSON text that was sent (no
  number loses a digit on the way) where the content type is JSON or not given; otherwise `data` is
  a string, and the payload is its text.

What the specification requires is checked, all of it: names, types and which attributes there are.
InvalidMessage says what is wrong.

While a JSON body is read, its parsed form takes memory several times its size, as with any parser:
the limit on the size of a body is the limit on that too.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final, Literal, NoReturn

from penstock.errors import InvalidMessage, TooLarge
from penstock.limits import MAX_CLOUDEVENTS, MAX_HEADERS, MAX_STREAM_NAME_BYTES
from penstock.message import KEY_STREAM, Buffer
from penstock.peers.cloudevents_attributes import (
    REQUIRED,
    TYPED,
    check_name,
    header_text,
    is_json,
    to_meta,
)

Mode = Literal["binary", "structured", "batch", "unknown"]
Event = tuple[bytes, dict[str, str]]

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_MEMBER_NAME: Final = re.compile(r'"([a-z0-9_]+)"[ \t\n\r]*:[ \t\n\r]*')
_MEMBER_END: Final = re.compile(r"[ \t\n\r]*(?:(\})|,[ \t\n\r]*)")


def mode(content_type: str) -> Mode:
    """How an event is carried, by the content type; `unknown` is a format that is not read here.

    Anything that is not a CloudEvents type is `binary`, if the headers say so: see `binary`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/cloudevents+json":
        return "structured"
    if media_type == "application/cloudevents-batch+json":
        return "batch"
    return "unknown" if media_type.startswith("application/cloudevents") else "binary"


def binary(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str] | None:
    """The meta of an event in binary mode; None if the headers have none of the attributes that
    every event has, so that it is a plain request."""
    attributes: dict[str, str] = {}
    content_type: bytes | None = None
    for header, value in headers:
        name = header.lower()
        if name == b"content-type":
            content_type = value
        elif name.startswith(b"ce-"):
            attribute = name[3:].decode("latin-1")
            check_name(attribute)
            if attribute == "datacontenttype":
                raise InvalidMessage(
                    "CloudEvent: use the header content-type, not ce-datacontenttype"
                )
            if attribute in attributes:
                raise InvalidMessage(f"CloudEvent: the header ce-{attribute} is there twice")
            attributes[attribute] = header_text(attribute, value)
    if not any(name in attributes for name in REQUIRED):
        return None
    if content_type is not None:
        attributes["datacontenttype"] = content_type.decode("latin-1").strip()
    return to_meta(attributes)


def structured(body: Buffer) -> Event:
    """The one event of a body of `application/cloudevents+json`."""
    text = _text(body)
    event, at = _event(text, _skip(text, 0))
    _check_end(text, at)
    return event


def batch(body: Buffer, max_events: int = MAX_CLOUDEVENTS) -> list[Event]:
    """The events of a body of `application/cloudevents-batch+json`, in order. May be none."""
    text = _text(body)
    at = _skip(text, 0)
    if not text.startswith("[", at):
        raise InvalidMessage("CloudEvents: a batch is a JSON array of events")
    events: list[Event] = []
    at = _skip(text, at + 1)
    more = not text.startswith("]", at)
    while more:
        if len(events) == max_events:
            raise TooLarge(
                f"CloudEvents: a batch may hold {max_events} events; send fewer at a time"
            )
        try:
            event, at = _event(text, at)
        except InvalidMessage as error:
            raise InvalidMessage(f"event {len(events)} of the batch: {error}") from None
        events.append(event)
        at = _skip(text, at)
        more = text.startswith(",", at)
        if more:
            at = _skip(text, at + 1)
    if not text.startswith("]", at):
        raise _not_json(at, "expected ',' or ']' after an event")
    _check_end(text, at + 1)
    return events


def idempotency_key(meta: dict[str, str]) -> str:
    """Names the event for ever: two events with the same source and id are the same event."""
    # A source has no space in it, so no two pairs give the same text.
    key = f"{meta['ce_source']} {meta['ce_id']}"
    if len(key.encode()) > MAX_STREAM_NAME_BYTES - len(KEY_STREAM) or not key.isprintable():
        return "sha256 " + hashlib.sha256(key.encode()).hexdigest()
    return key


# --- JSON ---------------------------------------------------------------------------------------
# The data of an event must come out as the text that went in, so the members of an event are walked
# here one by one. That also ends at the first event that is wrong, before the rest takes memory.


class _Integer(str):
    """Numbers stay text: `int` refuses long ones, `float` rounds them."""

    __slots__ = ()


class _Fraction(str):
    __slots__ = ()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER: Final = json.JSONDecoder(
    parse_int=_Integer, parse_float=_Fraction, parse_constant=_refuse_constant
)


def _text(body: Buffer) -> str:
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"CloudEvent: byte {error.start}: the body is not UTF-8") from None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _check_end(text: str, at: int) -> None:
    at = _skip(text, at)
    if at < len(text):
        raise _not_json(at, "there is more after the end")


def _not_json(at: int, reason: str) -> InvalidMessage:
    return InvalidMessage(f"CloudEvent: character {at}: the body is not JSON: {reason}")


def _value(text: str, at: int) -> tuple[Any, int]:
    try:
        return _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise _not_json(error.pos, error.msg) from None
    except ValueError as error:
        raise _not_json(at, str(error)) from None
    except RecursionError:
        raise _not_json(at, "it is nested too deeply") from None


def _event(text: str, at: int) -> tuple[Event, int]:
    """The event that begins at `at`, and where it ends."""
    if not text.startswith("{", at):
        raise InvalidMessage(f"CloudEvent: character {at}: an event is a JSON object")
    members: dict[str, Any] = {}
    data_text: str | None = None
    at = _skip(text, at + 1)
    if text.startswith("}", at):
        return _from_members(members, data_text), at + 1
    while True:
        name, begin = _name(text, at)
        if name in members:
            raise InvalidMessage(f"CloudEvent: {name[:40]!r} is there twice")
        if len(members) == MAX_HEADERS:
            raise TooLarge(f"CloudEvent: has more than {MAX_HEADERS} attributes")
        members[name], at = _value(text, begin)
        if name == "data":
            data_text = text[begin:at]
        end = _MEMBER_END.match(text, at)
        if end is None:
            raise _not_json(_skip(text, at), "expected ',' or '}' after a member")
        at = end.end()
        if end[1]:
            return _from_members(members, data_text), at


def _name(text: str, at: int) -> tuple[str, int]:
    """A member's name, and where its value begins."""
    plain = _MEMBER_NAME.match(text, at)
    if plain is not None:
        return plain[1], plain.end()
    # A name with escapes in it, or no name at all.
    name, at = _value(text, at)
    at = _skip(text, at)
    if type(name) is not str or not text.startswith(":", at):
        raise _not_json(at, "expected a name and ':'")
    return name, _skip(text, at + 1)


def _from_members(members: dict[str, Any], data_text: str | None) -> Event:
    data = members.pop("data", None)
    data_base64 = members.pop("data_base64", None)
    attributes = {
        name: _attribute_text(name, value) for name, value in members.items() if value is not None
    }
    for name in members:
        check_name(name)
    if data_text is not None and data_base64 is not None:
        raise InvalidMessage("CloudEvent: has both data and data_base64; only one is allowed")
    if data_base64 is not None:
        return _decoded(data_base64), to_meta(attributes)
    if data_text is None:
        return b"", to_meta(attributes)
    content_type = attributes.setdefault("datacontenttype", "application/json")
    meta = to_meta(attributes)
    if is_json(content_type):
        return _encoded(data_text), meta
    if type(data) is not str:
        raise InvalidMessage(
            f"CloudEvent: data of the type {content_type[:80]!r} must be a string; use data_base64"
        )
    return _encoded(data), meta


def _attribute_text(name: str, value: object) -> str:
    if type(value) is str:
        return value
    if value is True or value is False:
        text = "true" if value else "false"
    elif isinstance(value, _Integer) and len(value) <= 11 and -(2**31) <= int(value) < 2**31:
        text = str(int(value))
    else:
        raise InvalidMessage(
            f"CloudEvent: {name[:40]!r} must be a string, a boolean or an integer of 32 bits"
        )
    if name in TYPED or name == "specversion":
        raise InvalidMessage(f"CloudEvent: {name!r} must be a string")
    return text


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage("CloudEvent: data has half of a surrogate pair") from None


def _decoded(data_base64: object) -> bytes:
    if type(data_base64) is not str:
        raise InvalidMessage("CloudEvent: data_base64 must be a string")
    try:
        return binascii.a2b_base64(data_base64.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidMessage(f"CloudEvent: data_base64 is not base64: {error}") from None
