"""The registry: what components there are, and what each says about itself.

A component declares itself once, on its options model:

    @declare(Kind.RECEIVER, "http", "Takes messages by HTTP POST.", available=True)
    class HttpReceiverOptions(ReceiverOptions):
        ...

Everything that needs to know of it (lint, `penstock list`, the schema, the reference pages, `run`)
reads that declaration. Plugins use the same decorator; there is no other way in. Modules declare
when they are imported: `penstock.flow.components.registry()` imports all of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from penstock.config.options import Options
from penstock.errors import ConfigError

OptionsType = TypeVar("OptionsType", bound=type[Options])


class Kind(StrEnum):
    RECEIVER = "receiver"
    LINK = "link"
    SINK = "sink"
    PEER = "peer"
    INTERCEPTOR = "interceptor"
    CODEC = "codec"

    @property
    def is_module(self) -> bool:
        """Whether it stands in `components:` as `module: kind.name`."""
        return self not in (Kind.INTERCEPTOR, Kind.CODEC)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many edges a component takes. None is any number."""

    min_inputs: int = 1
    max_inputs: int | None = None
    min_outputs: int = 1
    max_outputs: int | None = 1
    routed: bool = False  # outputs are picked by key (`routes`) and not by `connect` or `links`


SHAPES = {
    Kind.RECEIVER: Shape(min_inputs=0, max_inputs=0, min_outputs=0, max_outputs=None),
    Kind.LINK: Shape(),
    Kind.SINK: Shape(min_outputs=0, max_outputs=0),
    Kind.PEER: Shape(min_inputs=0, min_outputs=0, max_outputs=None),
    Kind.INTERCEPTOR: Shape(),
    Kind.CODEC: Shape(),
}


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a component says about itself."""

    kind: Kind
    name: str
    summary: str
    options: type[Options]
    shape: Shape
    aliases: tuple[str, ...]
    available: bool

    @property
    def module(self) -> str:
        """`kind.name` for what stands in `components:`, the bare name for the rest."""
        return f"{self.kind}.{self.name}" if self.kind.is_module else self.name


class Registry:
    """Declarations by name. One for the process (`REGISTRY`); tests may make their own."""

    def __init__(self) -> None:
        self._found: dict[Kind, dict[str, Declaration]] = {kind: {} for kind in Kind}
        self._aliases: dict[Kind, dict[str, str]] = {kind: {} for kind in Kind}

    def declare(
        self,
        kind: Kind,
        name: str,
        summary: str,
        *,
        shape: Shape | None = None,
        aliases: tuple[str, ...] = (),
        available: bool = False,
    ) -> Callable[[OptionsType], OptionsType]:
        """Decorate an options model: it is the component `name` from then on.

        `available` says whether this version can run it. What is known and not available passes
        the linter; `penstock run` says plainly that it is not there yet.
        """

        def add(options: OptionsType) -> OptionsType:
            self.add(
                Declaration(kind, name, summary, options, shape or SHAPES[kind], aliases, available)
            )
            return options

        return add

    def add(self, declaration: Declaration) -> None:
        kind = declaration.kind
        for spelling in (declaration.name, *declaration.aliases):
            if spelling in self._found[kind] or spelling in self._aliases[kind]:
                raise ConfigError(f"{kind} {spelling!r} is declared twice; rename one of them")
        self._found[kind][declaration.name] = declaration
        for alias in declaration.aliases:
            self._aliases[kind][alias] = declaration.name

    def find(self, kind: Kind, name: str) -> Declaration | None:
        found = self._found[kind]
        return found.get(name) or found.get(self._aliases[kind].get(name, ""))

    def find_module(self, module: str) -> Declaration | None:
        """By any of the spellings that `module_spellings` lists."""
        plain = module.removeprefix("core.")
        kind, _, name = plain.partition(".")
        if kind in _MODULE_KINDS:
            return self.find(_MODULE_KINDS[kind], name)
        return self.find(Kind.LINK, plain) if plain != module else None

    def of_kind(self, kind: Kind) -> list[Declaration]:
        return sorted(self._found[kind].values(), key=lambda found: found.name)

    def __iter__(self) -> Iterator[Declaration]:
        for kind in Kind:
            yield from self.of_kind(kind)

    def module_names(self) -> list[str]:
        """`kind.name` of every module, aliases included: what a wrong spelling is compared with."""
        return [f"{kind}.{name}" for kind in Kind if kind.is_module for name in self.names(kind)]

    def names(self, kind: Kind) -> list[str]:
        return [*self._found[kind], *self._aliases[kind]]


# `links.x` reads as `link.x`.
_MODULE_KINDS = {kind.value: kind for kind in Kind if kind.is_module} | {"links": Kind.LINK}


def module_spellings(declaration: Declaration) -> list[str]:
    """How a file may write the module, the preferred way first.

    Files of the original relay also write `links.x`; its newer ones `core.receiver.x` and
    `core.sink.x`, and links without their kind: `core.x`.
    """
    found = []
    for name in (declaration.name, *declaration.aliases):
        found += [f"{declaration.kind}.{name}", f"core.{declaration.kind}.{name}"]
        if declaration.kind is Kind.LINK:
            found += [f"links.{name}", f"core.{name}"]
    return found


REGISTRY = Registry()
declare = REGISTRY.declare
