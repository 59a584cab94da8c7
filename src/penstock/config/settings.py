"""Settings and where they come from: default < environment < file < command line.

Every leaf of the file's `system:` is a setting, named by its path: `admin.bind` is `PENSTOCK_ADMIN_BIND`
in the environment and `--set admin.bind=...` on the command line. There is no second list to keep.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from penstock.config.located import Entry, Mapping, Node, Scalar, Sequence, describe, is_null
from penstock.config.model import KEPT, SystemOptions
from penstock.config.options import HIDDEN, Options, field_named
from penstock.config.problems import Mark, Problems, quoted
from penstock.config.reading import read_options

PREFIX = "PENSTOCK_"
OTHER_VARIABLES = {"PENSTOCK_PLUGIN_PATH": "Directories to look for plugins in."}
"""Variables that are no settings of the flow file, with what they mean."""

DEFAULT = "default"
COMMAND_LINE = "command line"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting, as the model declares it."""

    path: Path
    info: FieldInfo

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        return PREFIX + "_".join(self.path).upper()

    @property
    def is_list(self) -> bool:
        return typing.get_origin(self.info.annotation) is list

    @property
    def is_secret(self) -> bool:
        return SecretStr in (self.info.annotation, *typing.get_args(self.info.annotation))


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it may be shown, what gave it, and what it was chosen over."""

    name: str
    value: str
    origin: str
    overridden: tuple[tuple[str, str], ...] = ()  # (origin, value), the strongest first


@dataclass(slots=True)
class _Given:
    """The values that one origin gives."""

    values: dict[Path, Node] = field(default_factory=dict)


def leaves(model: type[Options] = SystemOptions, prefix: Path = ()) -> Iterator[Leaf]:
    for name, info in model.model_fields.items():
        nested = _nested(info)
        if nested is not None:
            yield from leaves(nested, (*prefix, name))
        else:
            yield Leaf((*prefix, name), info)


def _nested(info: FieldInfo) -> type[Options] | None:
    annotation = info.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, Options) else None


def resolve(
    node: Node | None,
    environment: AnyMapping[str, str],
    overrides: AnyMapping[str, str],
    problems: Problems,
) -> tuple[SystemOptions, list[Setting]]:
    """`system:` as it counts, and where each value came from. Mistakes leave the default."""
    by_path = {leaf.path: leaf for leaf in leaves()}
    if isinstance(node, (Scalar, Sequence)):
        if not is_null(node):
            problems.add(node.mark, f"`system`: expected a mapping, found {describe(node)}")
        node = None
    from_file = _Given()
    merged = _take(SystemOptions, node, (), from_file) if node else Mapping(Mark())
    given = [
        ("environment", _from_environment(by_path, environment, problems)),
        ("file", from_file),
        (COMMAND_LINE, _from_command_line(by_path, overrides, problems)),
    ]
    for _, origin in given:
        for path, value in origin.values.items():
            _put(merged, path, value)
    top = node.mark if node is not None else Mark()
    system = read_options(SystemOptions, merged, top, problems, "`system`") or SystemOptions()
    return system, [_explain(leaf, system, given) for leaf in by_path.values()]


def _take(model: type[Options], node: Mapping, prefix: Path, given: _Given) -> Mapping:
    """Put the leaves that the file has into `given`; the rest is for the model to complain of."""
    rest = Mapping(node.mark)
    for key, entry in node.entries.items():
        name = field_named(model, key)
        nested = _nested(model.model_fields[name]) if name else None
        path = (*prefix, name or "")
        if name is None or path in given.values or name in rest.entries:
            rest.entries[key] = entry
        elif nested is None:
            given.values[path] = entry.value
        elif isinstance(entry.value, Mapping):
            inner = _take(nested, entry.value, path, given)
            if inner.entries or not entry.value.entries:
                rest.entries[name] = Entry(entry.key, inner)
        elif isinstance(entry.value, Scalar) and entry.value.text == KEPT:
            for leaf in leaves(nested, path):
                given.values[leaf.path] = Scalar(entry.value.mark, "")
        elif not is_null(entry.value):
            rest.entries[key] = entry
    return rest


def _from_environment(
    by_path: dict[Path, Leaf], environment: AnyMapping[str, str], problems: Problems
) -> _Given:
    given = _Given()
    variables = {leaf.variable: leaf for leaf in by_path.values()}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or not text:
            continue
        mark = Mark(source=variable)
        if variable in variables:
            given.values[variables[variable].path] = _scalar(variables[variable], text, mark)
        elif variable not in OTHER_VARIABLES:
            close = problems.suggest(variable, [*variables, *OTHER_VARIABLES])
            problems.warn(mark, "there is no such setting; it is ignored", close)
    return given


def _from_command_line(
    by_path: dict[Path, Leaf], overrides: AnyMapping[str, str], problems: Problems
) -> _Given:
    given = _Given()
    names = {leaf.name: leaf for leaf in by_path.values()}
    for name, text in overrides.items():
        mark = Mark(source=f"--set {name[:80]}")
        leaf = by_path.get(_canonical(name.removeprefix("system.")))
        if leaf is not None:
            given.values[leaf.path] = _scalar(leaf, text, mark)
        else:
            close = problems.suggest(name, list(names))
            problems.add(mark, f"there is no setting {quoted(name)}", close)
    return given


def _canonical(name: str) -> Path:
    """The path that a dotted name stands for, aliases replaced."""
    model: type[Options] | None = SystemOptions
    path: list[str] = []
    for step in name.split("."):
        found = field_named(model, step) if model else None
        if model is None or found is None:
            return ()
        path.append(found)
        model = _nested(model.model_fields[found])
    return tuple(path)


def _scalar(leaf: Leaf, text: str, mark: Mark) -> Node:
    if leaf.is_list:
        return Sequence(mark, [Scalar(mark, part.strip(), False) for part in text.split(",")])
    return Scalar(mark, text)


def _put(mapping: Mapping, path: Path, value: Node) -> None:
    for step in path[:-1]:
        entry = mapping.entries.get(step)
        if entry is None or not isinstance(entry.value, Mapping):
            entry = Entry(Scalar(value.mark, step), Mapping(value.mark))
            mapping.entries[step] = entry
        assert isinstance(entry.value, Mapping)
        mapping = entry.value
    mapping.entries[path[-1]] = Entry(Scalar(value.mark, path[-1]), value)


def _explain(leaf: Leaf, system: SystemOptions, given: list[tuple[str, _Given]]) -> Setting:
    shown: Any = system.shown()
    for step in leaf.path:
        shown = (
            shown[step] if isinstance(shown, dict) else shown
        )  # a group may be hidden as a whole
    found = [
        (_origin(origin, leaf, values.values[leaf.path]), _raw(leaf, values.values[leaf.path]))
        for origin, values in reversed(given)
        if leaf.path in values.values
    ]
    default = (DEFAULT, show(leaf.info.get_default(call_default_factory=True)))
    if not found:
        return Setting(leaf.name, show(shown), DEFAULT)
    return Setting(leaf.name, show(shown), found[0][0], (*found[1:], default))


def _origin(origin: str, leaf: Leaf, node: Node) -> str:
    if origin == "environment":
        return f"environment {leaf.variable}"
    return f"file, line {node.mark.line}" if origin == "file" else origin


def _raw(leaf: Leaf, node: Node) -> str:
    """A value as it was written, where that is no secret."""
    if leaf.is_secret:
        return HIDDEN
    if isinstance(node, Scalar):
        return HIDDEN if node.secret else "-" if node.is_null else node.text
    if isinstance(node, Sequence):
        return ", ".join(_raw(leaf, item) for item in node.items)
    return "a mapping"


def show(value: Any) -> str:
    """A value for people: `-` for none, text bare."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(show, value)) or "-"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
