"""`penstock list`: the components there are, and the options of each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.cli.output import line, on_terminal, table
from penstock.config.problems import did_you_mean
from penstock.config.reference import OptionRow, option_rows
from penstock.config.registry import Declaration, Kind, Registry
from penstock.config.schema import options_schema
from penstock.config.spelling import nearest
from penstock.errors import ConfigError
from penstock.flow.components import registry


def list_components(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help="receiver, link, sink, peer, interceptor or codec; or a module: receiver.http",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One of them.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON, with a schema each.")] = False,
) -> None:
    """List components; with a name, its options.

    In a pipe: kind, name, `available` or `later`, summary; of one component: option, type, default,
    description. Separated by tabs.
    """
    found = _find(registry(), kind, name)
    if as_json:
        _as_json(found)
    elif name is not None or (kind is not None and "." in kind):
        _show_one(found[0])
    else:
        rows = [
            (one.kind, ", ".join((one.name, *one.aliases)), _availability(one), one.summary)
            for one in found
        ]
        table(("kind", "name", "", "what it does"), rows)


def _find(known: Registry, kind: str | None, name: str | None) -> list[Declaration]:
    if kind is None:
        return list(known)
    if "." in kind and name is None:
        module = known.find_module(kind)
        if module is None:
            close = did_you_mean(nearest(kind, known.module_names()))
            raise ConfigError(f"there is no module {kind!r}" + (f"; {close}" if close else ""))
        return [module]
    singular = kind.removesuffix("s")
    if singular not in list(Kind):
        kinds = ", ".join(Kind)
        raise ConfigError(f"there is no kind {kind!r}; there are {kinds}")
    if name is None:
        return known.of_kind(Kind(singular))
    found = known.find(Kind(singular), name)
    if found is None:
        close = did_you_mean(nearest(name, known.names(Kind(singular))))
        raise ConfigError(f"there is no {singular} {name!r}" + (f"; {close}" if close else ""))
    return [found]


def _availability(one: Declaration) -> str:
    return "available" if one.available else "later"


def _show_one(one: Declaration) -> None:
    rows = [_row(row) for row in option_rows(one.options)]
    if on_terminal():
        later = "" if one.available else " (known, not there yet in this version)"
        line(f"{one.module}{later}: {one.summary}")
        if one.aliases:
            line(f"also written {', '.join(one.aliases)}")
        line("" if rows else "It has no options.")
    if rows:
        table(("option", "type", "default", "what it means"), rows)


def _row(row: OptionRow) -> tuple[str, str, str, str]:
    names = ", ".join((row.name, *row.aliases))
    return names, row.type.replace("`", ""), row.default or "required", row.description


def _as_json(found: list[Declaration]) -> None:
    import orjson

    listed: list[dict[str, Any]] = [
        {
            "kind": str(one.kind),
            "name": one.name,
            "module": one.module,
            "aliases": list(one.aliases),
            "summary": one.summary,
            "available": one.available,
            "options": options_schema(one.options),
        }
        for one in found
    ]
    line(orjson.dumps(listed).decode())
