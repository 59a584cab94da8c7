"""What the models say of themselves, in words: for `penstock list` and the reference pages."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union

from pydantic import BeforeValidator, PlainValidator, SecretStr
from pydantic.fields import FieldInfo

from penstock.config.address import Address
from penstock.config.options import Options, one_or_many, spellings
from penstock.config.settings import show
from penstock.config.units import parse_duration, parse_size, show_size
from penstock.guarantee import Guarantee

_WORDS: dict[Any, str] = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    SecretStr: "secret",
    Address: "address",
    Guarantee: "guarantee",
}
_CONVERTED = {parse_size: "size", parse_duration: "time"}


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option; `name` has the path to it where it stands inside another: `tls.cert`."""

    name: str
    aliases: tuple[str, ...]
    type: str
    default: str  # empty: it is required
    description: str
    required: bool


def option_rows(model: type[Options], prefix: str = "") -> Iterator[OptionRow]:
    """Every option of a model, those of the groups inside it right after the group's own."""
    for name, info in model.model_fields.items():
        written, *aliases = spellings(name, info)
        group = _group(info.annotation)
        extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
        shown: Any = extra.get("shown", {})
        yield OptionRow(
            name=prefix + written,
            aliases=tuple(aliases),
            type=shown.get("type") or _type(info, group),
            default=shown.get("default") or _default(info, group),
            description=" ".join((info.description or "").split()),
            required=info.is_required(),
        )
        if group is not None:
            yield from option_rows(group, f"{prefix}{written}.")


def _group(annotation: Any) -> type[Options] | None:
    """The model of a nested group of options, also where it may be absent."""
    for one in (annotation, *typing.get_args(annotation)):
        if isinstance(one, type) and issubclass(one, Options):
            return one
    return None


def type_words(annotation: Any, metadata: typing.Sequence[Any] = ()) -> str:
    """What is expected, in a word or two."""
    for item in metadata:
        function = getattr(item, "func", None)
        if isinstance(item, (BeforeValidator, PlainValidator)) and function in _CONVERTED:
            return _CONVERTED[function]
        if function is one_or_many:
            return f"list of {type_words(typing.get_args(annotation)[0])}"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_words(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(one) for one in arguments if one is not type(None))
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin is list:
        return f"list of {type_words(arguments[0])}"
    if origin is dict:
        return f"map to {type_words(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Options):
        return "options"
    return _WORDS.get(annotation, "any value")


def _type(info: FieldInfo, group: type[Options] | None) -> str:
    return "options" if group else type_words(info.annotation, info.metadata)


def _default(info: FieldInfo, group: type[Options] | None) -> str:
    if info.is_required():
        return ""
    value = info.get_default(call_default_factory=True)
    if isinstance(value, Options) or (group is not None and value is not None):
        return "-"
    if isinstance(value, SecretStr):
        return show(value.get_secret_value())
    if isinstance(value, int) and type_words(info.annotation, info.metadata) == "size":
        return show_size(value)
    return show(value) if not isinstance(value, str) else repr(value).strip("'\"") or '""'
