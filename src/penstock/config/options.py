"""The base of every options model, and the small types their fields are made of.

A component declares its options once, as a model of typed fields with a description each. Parsing,
lint, `penstock list`, the reference pages and the JSON Schema are all made from that one model.

Values reach a model from YAML as text (see `config.located`), so `"4"` is as good as `4` wherever a
number is expected; that is also how `${ENV}` takes the type its place asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    PrivateAttr,
    SecretStr,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema

from penstock.config.address import Address
from penstock.config.names import check_topic
from penstock.config.units import DURATION_PATTERN, SIZE_PATTERN, parse_duration, parse_size
from penstock.errors import InvalidName
from penstock.guarantee import Guarantee

HIDDEN = "**********"


def _as_topic(text: str) -> str:
    try:
        return check_topic(text)
    except InvalidName as error:
        raise ValueError(str(error)) from None


Topic = Annotated[str, AfterValidator(_as_topic)]
"""The name of a topic, with or without its namespace."""


@dataclass(frozen=True, slots=True)
class Socket:
    """Something a component listens on. No two components may listen on the same."""

    transport: Literal["tcp", "udp", "unix"]
    place: Address | str  # an address, or a path

    def overlaps(self, other: Socket) -> bool:
        if self.transport != other.transport:
            return False
        if isinstance(self.place, Address) and isinstance(other.place, Address):
            return self.place.overlaps(other.place)
        return self.place == other.place

    def __str__(self) -> str:
        return f"{self.transport} {self.place}"


class Options(BaseModel):
    """Typed options. Unknown keys are mistakes; a value, once read, does not change.

    Never print a model's dump: `shown()` and `repr()` leave out secrets, `model_dump()` does not.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="forbid",
        # Every process knows all components and uses a few: their validators are made when they are needed.
        defer_build=True,
        frozen=True,
        populate_by_name=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    cuts: ClassVar[bool] = False
    """Of an interceptor: whether it finds where messages end in a stream of bytes."""

    carries_ids: ClassVar[bool] = False
    """Of a receiver: whether messages can come with an id of their sender's, as a topic with `ids: producer`
    needs them."""

    # Fields whose value was read from a secret file though their type is not a secret one.
    _secret: set[str] = PrivateAttr(default_factory=set)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Every spelling of every key, and only text that people need."""
        schema = handler(core_schema)
        own = handler.resolve_ref_schema(schema)
        written: dict[str, Any] = {}
        required = set(own.pop("required", []))
        either: list[Any] = []
        for name, field in cls.model_fields.items():
            names = spellings(name, field)
            found = own["properties"].get(name) or own["properties"][names[0]]
            found.pop("title", None)
            found.pop("shown", None)
            if "description" in found:
                found["description"] = " ".join(found["description"].split())
            written |= dict.fromkeys(names, found)
            if required & set(names):
                either.append({"anyOf": [{"required": [spelling]} for spelling in names]})
        own["properties"] = written
        if either:
            own["allOf"] = either
        return schema

    def listens(self) -> list[Socket]:
        """The sockets that a component with these options opens."""
        return []

    def promise(self) -> tuple[Guarantee, str]:
        """The best that a component with these options can promise, and why not more."""
        return Guarantee.EXACTLY_ONCE, ""

    def default_interceptors(self) -> tuple[str, ...]:
        """What stands in for `interceptors:` where a component says nothing of them."""
        return ()

    def wire(self) -> dict[str, Any]:
        """All options as plain JSON values, **secrets included**: for Penstock's own processes.

        `Model.model_validate(options.wire())` gives the same options back.
        """
        return {name: _wire(getattr(self, name)) for name in type(self).model_fields}

    def mark_secret(self, path: tuple[str | int, ...]) -> None:
        """Hide the field that `path` leads to (keys as they were written, aliases included)."""
        name = field_named(type(self), str(path[0]))
        if name is None:
            return
        value = getattr(self, name)
        if isinstance(value, Options) and len(path) > 1:
            value.mark_secret(path[1:])
        else:
            self._secret.add(name)

    def shown(self) -> dict[str, Any]:
        """The options as they may be shown to anyone, secrets replaced."""
        return {
            name: HIDDEN if name in self._secret else _shown(getattr(self, name))
            for name in type(self).model_fields
        }

    def __repr_args__(self) -> Any:
        return self.shown().items()


def _shown(value: Any) -> Any:
    if isinstance(value, Options):
        return value.shown()
    if isinstance(value, SecretStr):
        return HIDDEN
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_shown(item) for item in value]
    return value


def _wire(value: Any) -> Any:
    if isinstance(value, Options):
        return value.wire()
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, Address):
        return str(value)
    if isinstance(value, dict):
        return {key: _wire(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_wire(item) for item in value]
    return value


class NoOptions(Options):
    """For components that have none."""


def spellings(name: str, field: FieldInfo) -> list[str]:
    """Every key under which a field may be written, the preferred one first."""
    alias = field.validation_alias
    found = [name]
    if isinstance(alias, AliasChoices):
        found += [choice for choice in alias.choices if isinstance(choice, str) and choice != name]
    elif isinstance(alias, str):
        found = [alias]
    return found


def field_named(model: type[BaseModel], key: str) -> str | None:
    """The field that `key` stands for, by name or by alias."""
    for name, field in model.model_fields.items():
        if key in spellings(name, field):
            return name
    return None


def one_or_many(value: Any) -> Any:
    """A single value where a list is expected stands for a list of one."""
    return [value] if isinstance(value, (str, int)) else value


Texts = Annotated[
    list[str],
    BeforeValidator(one_or_many),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
"""A list of text, or a single one."""

SizeBytes = Annotated[
    int,
    BeforeValidator(parse_size),
    WithJsonSchema(
        {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": SIZE_PATTERN}]},
    ),
]
"""Bytes: a whole number, or text with a unit: `64KiB`, `10 MB`."""

Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {"anyOf": [{"type": "number"}, {"type": "string", "pattern": DURATION_PATTERN}]},
    ),
]
"""Seconds: a number, or text with a unit: `500ms`, `10s`, `5m`, `2h`, `7d`."""
