"""Drawings of a flow: Mermaid and DOT as text for other tools; SVG and plain text without any."""

from __future__ import annotations

from enum import StrEnum

from penstock.config.registry import Kind
from penstock.flow.graph import Graph, Node
from penstock.flow.svg import draw_svg
from penstock.flow.terminal import draw_text


class Format(StrEnum):
    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"


def draw(graph: Graph, form: Format, *, ascii_only: bool = False) -> str:
    """The drawing, ending in a newline."""
    if form is Format.TEXT:
        return draw_text(graph, ascii_only=ascii_only)
    if form is Format.SVG:
        return draw_svg(graph)
    return draw_mermaid(graph) if form is Format.MERMAID else draw_dot(graph)


_MERMAID_SHAPES = {
    Kind.RECEIVER: ("([", "])"),
    Kind.PEER: ("([", "])"),
    Kind.SINK: ("[(", ")]"),
    Kind.LINK: ("[", "]"),
    None: ("[[", "]]"),
}


def draw_mermaid(graph: Graph) -> str:
    lines = ["flowchart LR"]
    ids = {name: f"n{number}" for number, name in enumerate(graph.nodes)}
    for name, node in graph.nodes.items():
        left, right = _MERMAID_SHAPES[_shape(node)]
        label = f"{_mermaid(node.label)}<br/><small>{_mermaid(node.module)}</small>"
        lines.append(f'  {ids[name]}{left}"{label}"{right}')
    for link in graph.links:
        label = f'|"{_mermaid(link.label)}"|' if link.routes else ""
        lines.append(f"  {ids[link.source]} -->{label} {ids[link.target]}")
    return "\n".join(lines) + "\n"


def _shape(node: Node) -> Kind | None:
    return node.component.kind


def _mermaid(text: str) -> str:
    """Mermaid has entities for what its quotes cannot hold, written with # and without &."""
    kept = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"#{ord(c)};" if c in '#"<>&|`\\;' else c for c in kept)


_DOT_SHAPES = {
    Kind.RECEIVER: "cds",
    Kind.PEER: "cds",
    Kind.SINK: "cylinder",
    Kind.LINK: "box",
    None: "component",
}


def draw_dot(graph: Graph) -> str:
    lines = [
        f"digraph {_dot(graph.flow.name)} {{",
        "  rankdir=LR;",
        '  node [fontname="sans-serif"];',
        '  edge [fontname="sans-serif"];',
    ]
    for name, node in graph.nodes.items():
        label = _dot(f"{node.label}\n{node.module}")
        lines.append(f"  {_dot(name)} [label={label}, shape={_DOT_SHAPES[_shape(node)]}];")
    for link in graph.links:
        label = f" [label={_dot(link.label)}]" if link.routes else ""
        lines.append(f"  {_dot(link.source)} -> {_dot(link.target)}{label};")
    return "\n".join([*lines, "}"]) + "\n"


def _dot(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return '"' + "".join(c if c.isprintable() else " " for c in escaped) + '"'
