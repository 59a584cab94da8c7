"""`penstock explain`: which queries a flow becomes, in words, and Spark's own plan on request."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.flows import usable_flow
from penstock.cli.output import human_count, line, no_colour, on_terminal, printable
from penstock.flow.explaining import Explanation, Query, sentences
from penstock.flow.explaining import explain as explain_flow

_INDENT = 13


def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The flow file.")],
    spark: Annotated[
        bool, typer.Option("--spark", help="Spark's plan of every query, too. Starts Spark.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say in words which queries a flow becomes.

    For each: the topics it reads, its links in the order of the data, where it is cut and why, and its sinks
    with what each guarantees. Nothing is started and nothing is changed; `--spark` starts Spark, on empty
    topics of its own.
    """
    flow = usable_flow(file)
    found = explain_flow(flow)
    plans: dict[str, str] = {}
    if spark:
        from penstock.engine.explaining import spark_plans

        plans = dict(spark_plans(flow))
    if as_json:
        _as_json(found, plans)
    else:
        _show(found, plans)


def _show(found: Explanation, plans: dict[str, str]) -> None:
    count = len(found.queries)
    queries = human_count(count, "query") if count == 1 else f"{count:,} queries"
    line(f"flow {printable(found.flow)}: {queries}; dead letters in {found.dead_letter}")
    for what in found.missing:
        line(f"not there yet in this version: {printable(what)}")
    for query in found.queries:
        line("")
        line(_bold(f"query {printable(query.name)}"))
        _show_query(query)
        if query.name in plans:
            line("  Spark's plan:")
            for text in plans[query.name].splitlines():
                line(f"    {printable(text)}")


def _show_query(query: Query) -> None:
    for word, text in sentences(query):
        head = f"  {word:<{_INDENT - 2}}"
        if on_terminal():
            _wrapped(head, printable(text))
        else:
            line(f"{head}{printable(text)}")


def _wrapped(head: str, text: str) -> None:
    """On a terminal, lines go on under their beginning."""
    import shutil
    import textwrap

    width = max(40, shutil.get_terminal_size().columns)
    first, *rest = textwrap.wrap(text, width - _INDENT) or [""]
    line(_bold(head) + first)
    for more in rest:
        line(" " * _INDENT + more)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if on_terminal() and not no_colour() else text


def _as_json(found: Explanation, plans: dict[str, str]) -> None:
    import orjson

    shown = asdict(found)
    for query in shown["queries"]:
        if query["name"] in plans:
            query["spark_plan"] = plans[query["name"]]
    line(orjson.dumps(shown).decode())
