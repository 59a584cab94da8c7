"""From located nodes to typed models: every mistake gets its place, in words for people.

A model is given text and converts it (see `config.options`). What it refuses comes back as errors
with a path, which leads to the node, and so to the line and column.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from penstock.config.located import Mapping, Node, Scalar, Sequence, describe, is_null
from penstock.config.options import Options, field_named, spellings
from penstock.config.problems import Mark, Problems, did_you_mean, quoted
from penstock.config.spelling import nearest
from penstock.limits import MAX_PROBLEMS

Model = TypeVar("Model", bound=Options)
Path = tuple[str | int, ...]

_EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "dataclass": "a mapping",
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]{1,17}\.[0-9]{0,17}([eE][-+]?[0-9]{1,3})?")


def read_options(
    model: type[Model], node: Node | None, mark: Mark, problems: Problems, what: str
) -> Model | None:
    """The options in `node`, or None; problems are added for whatever is wrong.

    What is wrong at the top level is left out and the rest read again, so that later checks have
    something to work with. `mark` is the place to report what is missing; `what` names the whole.
    """
    if node is not None and not is_null(node) and not isinstance(node, Mapping):
        if not _is_broken(node):
            problems.add(node.mark, f"{what}: expected a mapping, found {describe(node)}")
        return None
    mapping = node if isinstance(node, Mapping) else Mapping(mark)
    data = plain(mapping)
    meant: set[Path] = set()
    for _ in range(2):
        try:
            options = model.model_validate(data)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=True, include_input=False)
            meant |= _meant(model, errors)
            for detail in errors:
                if detail["type"] == "missing" and detail["loc"] in meant:
                    continue  # it is there, misspelt, and that is reported
                _report(model, mapping, mark, detail, problems, what)
                if detail["loc"] and data.pop(detail["loc"][0], None) is not None:
                    # What is left out now is not missing as well.
                    field = field_named(model, str(detail["loc"][0]))
                    meant |= {(field,)} if field else set()
            continue
        for path, _ in secret_scalars(mapping):
            if path[0] in data:
                options.mark_secret(path)
        return options
    return None


def plain(node: Node) -> Any:
    """Nested dicts and lists of text and None, for a model to convert."""
    if isinstance(node, Mapping):
        return {
            key: plain(entry.value)
            for key, entry in node.entries.items()
            if not _is_broken(entry.value)
        }
    if isinstance(node, Sequence):
        return [plain(item) for item in node.items]
    return None if node.is_null else node.text


def values(node: Node) -> Any:
    """The same with YAML's own types, where no model says what is expected (a plugin's params)."""
    if isinstance(node, Mapping):
        return {key: values(entry.value) for key, entry in node.entries.items()}
    if isinstance(node, Sequence):
        return [values(item) for item in node.items]
    if not node.plain:
        return node.text
    if node.is_null:
        return None
    if node.text.lower() in ("true", "false"):
        return node.text.lower() == "true"
    if _INT.fullmatch(node.text):
        return int(node.text)
    if _FLOAT.fullmatch(node.text) and math.isfinite(float(node.text)):
        return float(node.text)
    return node.text


def _is_broken(node: Node) -> bool:
    """Whether a reference in it could not be followed. Of a list: in any of its items."""
    if isinstance(node, Sequence):
        return any(_is_broken(item) for item in node.items)
    return isinstance(node, Scalar) and node.broken


def secret_scalars(node: Node, path: Path = ()) -> Iterator[tuple[Path, Scalar]]:
    """Every scalar in the node that holds a secret, with the way to it."""
    if isinstance(node, Mapping):
        for key, entry in node.entries.items():
            yield from secret_scalars(entry.value, (*path, key))
    elif isinstance(node, Sequence):
        for index, item in enumerate(node.items):
            yield from secret_scalars(item, (*path, index))
    elif node.secret:
        yield path, node


def refuse_secrets(node: Node, problems: Problems) -> None:
    """For values that are shown to everyone. They are then left out of what is read."""
    for path, secret in secret_scalars(node):
        key = quoted(str(path[-1])) if path and isinstance(path[-1], str) else "this"
        problems.add(secret.mark, f"{key} is shown to everyone: it takes no secret")
        secret.broken = True


def _meant(model: type[Options], errors: list[ErrorDetails]) -> set[Path]:
    """Paths of the options that unknown keys most likely stand for."""
    found: set[Path] = set()
    for detail in errors[:MAX_PROBLEMS]:
        if detail["type"] == "extra_forbidden":
            inner = _model_at(model, detail["loc"][:-1])
            close = nearest(str(detail["loc"][-1]), _all_spellings(inner or model))
            field = close and field_named(inner or model, close)
            if field:
                found.add((*detail["loc"][:-1], field))
    return found


def _all_spellings(model: type[BaseModel]) -> list[str]:
    return [name for f, info in model.model_fields.items() for name in spellings(f, info)]


def _report(
    model: type[Options],
    mapping: Mapping,
    mark: Mark,
    detail: ErrorDetails,
    problems: Problems,
    what: str,
) -> None:
    loc = detail["loc"]
    node, key, steps = _locate(mapping, loc)
    kind = detail["type"]
    if kind == "extra_forbidden" and key is not None:
        inner = _model_at(model, steps[:-1])
        message, hint = _unknown(inner or model, str(loc[-1]), what, problems)
        problems.add(key, message, hint)
        return
    if kind == "missing":
        if _is_broken(_value(mapping, loc)):
            return
        place = node.mark if len(loc) > 1 else mark
        wanted = ".".join(map(str, (*steps, loc[-1])))
        problems.add(place, f"{what} needs {quoted(wanted)}", _about(model, loc))
        return
    name = ".".join(str(step) for step in steps)
    subject = f"{what}: {quoted(name)}" if name else what
    place = mark if not loc else node.mark
    problems.add(place, f"{subject}: {_reason(detail, node)}")


def _value(mapping: Mapping, loc: Path) -> Node:
    node, _, steps = _locate(mapping, loc)
    return node if len(steps) == len(loc) else mapping


def _unknown(
    model: type[BaseModel], key: str, what: str, problems: Problems
) -> tuple[str, str | None]:
    field = field_named(model, key)
    if field is not None:
        return f"{what}: {quoted(key)} says the same as {quoted(field)}; give only one", None
    close = problems.suggest(key, _all_spellings(model))
    listed = ", ".join(model.model_fields)
    return f"{what} has no option {quoted(key)}", close or (
        f"it has {listed}" if listed else "it has none"
    )


def _about(model: type[Options], loc: Path) -> str | None:
    inner = _model_at(model, loc[:-1])
    field = inner.model_fields.get(str(loc[-1])) if inner else None
    if field is None or not field.description:
        return None
    return " ".join(field.description.split()).split(". ")[0].rstrip(".")


def _reason(detail: ErrorDetails, node: Node) -> str:
    """What was expected and what was found."""
    kind = detail["type"]
    context = detail.get("ctx", {})
    found = describe(node)
    if kind == "value_error":
        said = str(context.get("error", ""))
        return f"{said}, found {found}" if said.startswith("expected") else said
    if kind == "literal_error":
        wanted = str(context["expected"]).replace("'", "`")
        close = None
        if isinstance(node, Scalar) and not node.secret:
            close = nearest(node.text, re.findall(r"`([^`]*)`", wanted))
        suffix = f"; {did_you_mean(close)}" if close else ""
        return f"expected {wanted}, found {found}{suffix}"
    for bound, words in _BOUNDS.items():
        if kind == bound:
            limit = next(iter(context.values()))
            return f"expected {words} {limit}, found {found}"
    if kind in ("too_short", "string_too_short"):
        return f"expected at least {context['min_length']}, found {_count(node)}"
    if kind in ("too_long", "string_too_long"):
        return f"expected at most {context['max_length']}, found {_count(node)}"
    if kind == "string_pattern_mismatch":
        return f"expected text like {quoted(str(context['pattern']))}, found {found}"
    stem = kind.removesuffix("_type").removesuffix("_parsing").removesuffix("_from_float")
    expected = _EXPECTED.get(stem) or _EXPECTED.get(stem.removesuffix("_parsing_size"))
    return f"expected {expected or 'something else'}, found {found}"


_BOUNDS = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}


def _count(node: Node) -> str:
    if isinstance(node, Scalar):
        return "nothing" if not node.text else f"{len(node.text)} characters"
    return str(len(node.items) if isinstance(node, Sequence) else len(node.entries)) + " entries"


def _locate(mapping: Mapping, loc: Path) -> tuple[Node, Mark | None, Path]:
    """The node a path leads to, the place of its key, and the steps that were keys of the file.

    Steps that only the model knows (the arms of a union) are passed over.
    """
    node: Node = mapping
    key: Mark | None = None
    steps: list[str | int] = []
    for step in loc:
        if isinstance(node, Mapping) and isinstance(step, str) and step in node.entries:
            key = node.entries[step].key.mark
            node = node.entries[step].value
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
        else:
            continue
        steps.append(step)
    return node, key, tuple(steps)


def _model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """The model of what a path leads to, through lists, mappings and options that may be absent."""
    current: Any = model
    for step in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            field = field_named(current, str(step))
            current = current.model_fields[field].annotation if field else None
        else:
            current = (typing.get_args(current) or (None,))[-1]
        current = _present(current)
    return current if isinstance(current, type) and issubclass(current, BaseModel) else None


def _present(annotation: Any) -> Any:
    """`X` of `X | None`, and of X with a validator."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _present(typing.get_args(annotation)[0])
    arguments = typing.get_args(annotation)
    if type(None) in arguments:
        return _present(next(one for one in arguments if one is not type(None)))
    return annotation
