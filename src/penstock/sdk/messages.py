"""Encoders and decoders: a program's own values, and the bytes that travel.

A plain function from a value to bytes is an encoder, and one from bytes to a value a decoder; the decorators add
the checks whose absence is found much later, at the other end, and name the function when it fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from penstock.errors import InvalidMessage

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What an encoder gives where the payload is not all there is."""

    payload: bytes
    key: bytes | None = None
    event_time: int = 0
    """In the unit that the receiver's `event_time` says, nanoseconds since 1970 by default. 0: none."""

    def __len__(self) -> int:
        """Bytes that travel."""
        return len(self.payload) + (0 if self.key is None else len(self.key))


Encoder: TypeAlias = Callable[[Any], bytes | Outgoing]
Decoder: TypeAlias = Callable[[bytes], Any]


def message_encoder(function: Callable[[Value], bytes | Outgoing]) -> Callable[[Value], Any]:
    """Decorate a function from a value to bytes, or to `Outgoing` where there is a key or a time.

    What it raises becomes `InvalidMessage`, and so does giving anything else than bytes.
    """

    @functools.wraps(function)
    def encode(value: Value) -> bytes | Outgoing:
        try:
            found = function(value)
        except Exception as error:
            raise InvalidMessage(
                f"{_name(function)} cannot encode {_shown(value)}: {_reason(error)}"
            ) from error
        payload = found.payload if isinstance(found, Outgoing) else found
        if not isinstance(payload, bytes | bytearray | memoryview):
            kind = type(payload).__name__
            raise InvalidMessage(
                f"{_name(function)} gave {kind}; an encoder gives bytes, or Outgoing"
            )
        return found

    return encode


def message_decoder(function: Callable[[bytes], Value]) -> Callable[[bytes], Value]:
    """Decorate a function from bytes to a value. What it raises becomes `InvalidMessage`."""

    @functools.wraps(function)
    def decode(payload: bytes) -> Value:
        try:
            return function(payload)
        except Exception as error:
            raise InvalidMessage(
                f"{_name(function)} cannot decode {_shown(payload)}: {_reason(error)}"
            ) from error

    return decode


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
