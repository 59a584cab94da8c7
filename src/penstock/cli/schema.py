"""`penstock schema`: the JSON Schema of the flow file, for editors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from penstock.config.schema import flow_schema
from penstock.flow.components import registry


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file.")
    ] = None,
) -> None:
    """Print the JSON Schema (2020-12) of the flow file."""
    text = json.dumps(flow_schema(registry()), indent=2) + "\n"
    if output is not None:
        output.write_text(text, encoding="utf-8")
    else:
        typer.echo(text, nl=False)
