"""Writes the pages of `docs/reference` that are made from the code: components, flow and
case files, limits, commands, metrics.

    python -m tools.reference       write them anew (`make docs`)
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from penstock import limits
from penstock.admin.metrics import FlowCollector
from penstock.cli.main import build
from penstock.config.model import ComponentOptions, FlowOptions, SystemOptions, WiringOptions
from penstock.config.options import Options
from penstock.config.reference import option_rows
from penstock.config.registry import Declaration, Kind
from penstock.edge.control import EngineStats
from penstock.flow.components import registry
from penstock.supervisor.totals import Snapshot
from penstock.testing.cases import (
    CaseOptions,
    FaultOptions,
    InputOptions,
    MessageOptions,
    SinkOptions,
    StatusOptions,
    SuiteOptions,
)

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
_MADE = "Made from the code by `make docs`; do not edit.\n"
_KINDS = {
    Kind.RECEIVER: "Receivers",
    Kind.LINK: "Links",
    Kind.SINK: "Sinks",
    Kind.PEER: "Peers",
    Kind.INTERCEPTOR: "Interceptors",
    Kind.CODEC: "Codecs",
}


def pages() -> dict[str, str]:
    """By file name."""
    return {
        "components.md": _components(),
        "flow-file.md": _flow_file(),
        "case-file.md": _case_file(),
        "limits.md": _limits(),
        "commands.md": _commands(),
        "metrics.md": _metrics(),
    }


def _components() -> str:
    lines = ["# Components", "", _MADE]
    lines += ["Every component with its options. `penstock list NAME` prints the same.", ""]
    known = registry()
    for kind, title in _KINDS.items():
        lines += [f"## {title}", ""]
        for one in known.of_kind(kind):
            lines += _component(one)
    return "\n".join(lines)


def _component(one: Declaration) -> list[str]:
    lines = [f"### {one.module}", "", one.summary + ("" if one.available else " *Not there yet.*")]
    if one.aliases:
        lines += ["", f"Also written {', '.join(f'`{name}`' for name in one.aliases)}."]
    return [*lines, "", *_options(one.options), ""]


def _options(model: type[Options]) -> list[str]:
    rows = []
    for row in option_rows(model):
        names = ", ".join(f"`{name}`" for name in (row.name, *row.aliases))
        default = "required" if row.required else "" if row.default == "-" else f"`{row.default}`"
        rows.append((names, row.type, default, row.description))
    if not rows:
        return ["It has no options."]
    return _table(("option", "type", "default", "what it means"), rows)


def _flow_file() -> str:
    return _file(
        "The flow file",
        ("The file", FlowOptions),
        ("`system`", SystemOptions),
        ("One of `components`", ComponentOptions),
        ("One of `pipeline`", WiringOptions),
    )


def _case_file() -> str:
    return _file(
        "The file of cases",
        ("The file", SuiteOptions),
        ("One of `cases`", CaseOptions),
        ("A message of `inputs`", InputOptions),
        ("One of `expect`", SinkOptions),
        ("A message of `expect`", MessageOptions),
        ("One of `statuses`", StatusOptions),
        ("One of `faults`", FaultOptions),
    )


def _file(name: str, *parts: tuple[str, type[Options]]) -> str:
    lines = [f"# {name}", "", _MADE]
    for title, model in parts:
        lines += [f"## {title}", "", *_options(model), ""]
    return "\n".join(lines)


def _limits() -> str:
    lines = ["# Limits", "", _MADE]
    lines += ["Sizes are in bytes, times in seconds. Options change those marked (default).", ""]
    source = Path(limits.__file__).read_text()
    rows: list[tuple[str, ...]] = []
    found = list(ast.parse(source).body)
    titles = {
        number: line.strip("# -").strip()
        for number, line in enumerate(source.splitlines(), 1)
        if line.startswith("# ---")
    }
    for statement, after in zip(found, [*found[1:], None], strict=True):
        for number in sorted(titles):
            if number < statement.lineno:
                lines += [*_limit_table(rows), f"## {titles.pop(number)}", ""]
                rows = []
        reason = _docstring(after)
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and reason
        ):
            name = statement.target.id
            rows.append((f"`{name}`", f"{getattr(limits, name):_}", reason))
    return "\n".join([*lines, *_limit_table(rows)])


def _limit_table(rows: list[tuple[str, ...]]) -> list[str]:
    return [*_table(("limit", "value", "why"), rows), ""] if rows else []


def _docstring(statement: ast.stmt | None) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return " ".join(str(statement.value.value).split())
    return ""


def _commands() -> str:
    lines = ["# Commands", "", _MADE]
    root = typer.main.get_command(build([]))
    lines += [str(root.epilog), ""]
    for name, command in _walk("penstock", root):
        lines += [f"## {name}", "", *_paragraphs(command.help or ""), ""]
        rows = [_parameter(one) for one in command.params if one.name != "help"]
        if rows:
            lines += [*_table(("", "default", ""), rows), ""]
    return "\n".join(lines)


def _metrics() -> str:
    lines = ["# Metrics", "", _MADE]
    lines += [
        "What `GET /metrics` of the admin API gives, in Prometheus's text format. Counters are summed over the processes and do not fall",
        "when one is started again. Those of sinks, pieces and the flow are there while the engine runs.",
        "",
    ]
    engine: EngineStats = {"lag": 0, "sinks": {}, "pieces": {}}
    found = FlowCollector("", [], Snapshot({}, {}, {}, engine)).collect()
    rows = []
    for family in sorted(found, key=lambda family: family.name):
        suffix = {"counter": "_total", "histogram": "_bucket, _sum, _count"}.get(family.type, "")
        names = [f"`{family.name}{ending}`" for ending in suffix.split(", ")]
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined]
        rows.append((", ".join(names), family.type, labels, family.documentation))
    return "\n".join([*lines, *_table(("metric", "kind", "labels", "what it says"), rows)])


def _walk(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in children.values():
        yield from _walk(f"{name} {child.name}", child)


def _paragraphs(text: str) -> list[str]:
    return [line.strip() for line in text.replace("\b", "").splitlines()]


def _parameter(one: Any) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    if one.param_type_name == "argument":
        names = f"`{one.metavar or (one.name or '').upper()}`"
    default = (
        "" if one.default in (None, False, ()) or callable(one.default) else f"`{one.default}`"
    )
    if one.required:
        default = "required"
    return names, default, " ".join((getattr(one, "help", "") or "").split())


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |")
    return lines


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text.rstrip() + "\n")


if __name__ == "__main__":
    main()
