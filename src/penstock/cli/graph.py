"""`penstock graph`: draw a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.flows import usable_flow
from penstock.flow.drawing import Format, draw
from penstock.flow.graph import Graph


def graph(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The flow file.")],
    form: Annotated[Format, typer.Option("--format", "-f", help="What to draw.")] = Format.TEXT,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")
    ] = None,
    ascii_only: Annotated[
        bool, typer.Option("--ascii", help="text: without box characters.")
    ] = False,
) -> None:
    """Draw a flow: on the terminal, as SVG, or as Mermaid or DOT for other tools."""
    drawing = draw(Graph(usable_flow(file)), form, ascii_only=ascii_only)
    if output is not None:
        output.write_text(drawing, encoding="utf-8")
    else:
        typer.echo(drawing, nl=False)
