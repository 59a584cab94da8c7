"""From a file of cases to cases: every mistake with its place, checked against the flow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson

from penstock.config import Flow, Problem, inspect
from penstock.config.located import Entry, Mapping, Node, Scalar, Sequence, decode, describe, parse
from penstock.config.problems import FlowFileError, Mark, Problems, quoted
from penstock.config.reading import read_options, values
from penstock.config.spelling import nearest
from penstock.errors import ConfigError
from penstock.flow.components import registry
from penstock.limits import MAX_FLOW_FILE_BYTES, MAX_MESSAGE_BYTES, TEST_FILE_BYTES
from penstock.testing.cases import CaseOptions, InputOptions, SuiteOptions
from penstock.testing.messages import Input

ENDING = ".test.yaml"


@dataclass(frozen=True, slots=True)
class Case:
    """One case, with its inputs as they go in, and where it stands in its file."""

    options: CaseOptions
    inputs: list[dict[str, list[Input]]]
    line: int

    @property
    def name(self) -> str:
        return self.options.name


@dataclass(frozen=True, slots=True)
class Suite:
    """A file of cases and the flow that they are of."""

    file: Path
    flow: Flow
    cases: tuple[Case, ...]


def suites_of(path: Path) -> list[Path]:
    """The files of cases that a path stands for: a flow's, or all below a folder."""
    if path.is_dir():
        return sorted(found for found in path.rglob(f"*{ENDING}") if not _hidden(found, path))
    if path.name.endswith(ENDING):
        return [path]
    own = [path.with_name(path.stem + ENDING)]
    more = sorted(path.parent.glob(f"{path.stem}.*{ENDING}"))
    return [found for found in own + more if found.exists()]


def _hidden(found: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in found.relative_to(root).parts)


def read_suite(path: Path) -> Suite:
    """FlowFileError with every mistake, of the cases and of the flow."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FLOW_FILE_BYTES + 1)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise FlowFileError([Problem(str(path), 0, 0, message)]) from None
    problems = Problems(str(path))
    text = decode(data, problems)
    root = parse(text, problems) if text is not None else None
    suite = _read(path, root, problems) if root is not None else None
    if text is not None and root is None and not problems.any_error:
        problems.add(Mark(1, 1), "the file is empty", "it needs `cases`")
    if suite is None or problems.any_error:
        raise FlowFileError(problems.sorted(), text)
    return suite


def _read(path: Path, root: Node, problems: Problems) -> Suite | None:
    if not isinstance(root, Mapping):
        problems.add(root.mark, f"expected a mapping with `cases`, found {describe(root)}")
        return None
    _write_json(root)
    nodes = root.get("cases")
    known = Mapping(root.mark, {k: e for k, e in root.entries.items() if k != "cases"})
    suite = read_options(SuiteOptions, known, root.mark, problems, "the file") or SuiteOptions()
    flow = _flow(path, suite, root, problems)
    if not isinstance(nodes, Sequence) or not nodes.items:
        mark = root.mark if nodes is None else nodes.mark
        problems.add(mark, "there are no `cases`", "it is a list of at least one")
        return None
    seen: dict[str, int] = {}
    cases = []
    for node in nodes.items:
        case = _case(path, node, flow, problems)
        if case is None:
            continue
        if case.name in seen:
            first = f"the first is on line {seen[case.name]}"
            problems.add(node.mark, f"a second case {quoted(case.name)}", first)
        seen.setdefault(case.name, case.line)
        cases.append(case)
    return None if flow is None else Suite(path, flow, tuple(cases))


def _write_json(root: Node) -> None:
    """What a message has under `json` becomes JSON, with YAML's own types: no model says what is expected.

    Messages stand in lists, and only they: a receiver, or an attribute, may be called `json` too.
    """
    waiting: list[Node] = [root]
    seen: set[int] = set()  # an alias is the same node again
    done: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Mapping):
            waiting += [entry.value for entry in node]
        elif isinstance(node, Sequence):
            waiting += node.items
            for item in node.items:
                if isinstance(item, Mapping) and "json" in item.entries and id(item) not in done:
                    done.add(id(item))
                    entry = item.entries["json"]
                    written = Scalar(entry.value.mark, _json(entry.value), plain=False)
                    item.entries["json"] = Entry(entry.key, written)


def _json(node: Node) -> str:
    return orjson.dumps(values(node)).decode()


def _flow(path: Path, suite: SuiteOptions, root: Mapping, problems: Problems) -> Flow | None:
    given = root.get("flow")
    mark = root.mark if given is None else given.mark
    file = _flow_file(path) if suite.flow is None else path.parent / suite.flow
    if file is None or not file.exists():
        said = file or path.with_name(path.name.split(".")[0] + ".yaml")
        problems.add(mark, f"there is no flow file {said}", "name it: `flow: FILE`")
        return None
    loaded = inspect(file, registry=registry(), environment=_environment(suite))
    if loaded.flow is None:
        for found in loaded.problems:
            if found.severity == "error":
                place = Mark(found.line, found.column, found.file)
                problems.add(place, found.message, found.hint)
    return loaded.flow


def _environment(suite: SuiteOptions) -> dict[str, str]:
    import os

    return {**os.environ, **suite.env}


def _flow_file(path: Path) -> Path | None:
    """`orders.yaml` of `orders.test.yaml` and of `orders.faults.test.yaml`."""
    stem = path.name.removesuffix(ENDING)
    while stem:
        file = path.with_name(f"{stem}.yaml")
        if file.exists():
            return file
        stem = stem.rpartition(".")[0]
    return None


# --- One case -----------------------------------------------------------------------------------


def _case(path: Path, node: Node, flow: Flow | None, problems: Problems) -> Case | None:
    name = node.get("name") if isinstance(node, Mapping) else None
    what = f"case {quoted(name.text)}" if isinstance(name, Scalar) else "the case"
    if isinstance(node, Mapping) and isinstance(once := node.get("inputs"), Mapping):
        key = node.entries["inputs"].key
        node.entries["inputs"] = Entry(key, Sequence(once.mark, [once]))  # a single round
    options = read_options(CaseOptions, node, node.mark, problems, what)
    if options is None or not isinstance(node, Mapping):
        return None
    if flow is not None:
        _check_names(node, flow, options, problems)
    inputs = [
        {
            receiver: _inputs(path, given, node, (number, receiver), problems)
            for receiver, given in one.items()
        }
        for number, one in enumerate(options.inputs)
    ]
    _check_counts(node, options, inputs, problems)
    return Case(options, inputs, node.mark.line)


def _inputs(
    path: Path, given: list[InputOptions], node: Mapping, at: tuple[int, str], problems: Problems
) -> list[Input]:
    found = []
    for index, one in enumerate(given):
        key = None if one.key is None else one.key.encode()
        payloads = [one.payload or b""]
        if one.file is not None:
            try:
                payloads = _lines(path.parent / one.file)
            except ConfigError as error:
                problems.add(_mark(node, "inputs", *at, index), str(error))
                payloads = []
        found += [
            Input(payload, one.meta, key, one.time, one.stream, one.seq) for payload in payloads
        ]
    return found


def _lines(file: Path) -> list[bytes]:
    try:
        with file.open("rb") as opened:
            data = opened.read(TEST_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    if len(data) > TEST_FILE_BYTES:
        raise ConfigError(f"{file} has more than {TEST_FILE_BYTES} bytes; use a shorter one")
    lines = [line.removesuffix(b"\r") for line in data.removesuffix(b"\n").split(b"\n")]
    if any(len(line) > MAX_MESSAGE_BYTES for line in lines):
        raise ConfigError(f"{file} has a line of more than {MAX_MESSAGE_BYTES} bytes")
    return lines


def _check_names(node: Mapping, flow: Flow, options: CaseOptions, problems: Problems) -> None:
    """That every name in the case is one of the flow's, and of the right kind."""
    components = flow.components.values()
    sources = [one.name for one in components if one.is_source]
    sinks = [one.name for one in components if one.is_end and flow.inputs(one.name)]
    for section, right, what in (
        ("inputs", sources, "receiver"),
        ("statuses", sources, "receiver"),
        ("expect", sinks, "sink"),
        ("faults", list(flow.components), "component"),
    ):
        given = node.get(section)
        for one in given.items if isinstance(given, Sequence) else [given]:
            if isinstance(one, Mapping):
                _check_keys(one, right, what, flow, problems)
    for index, name in enumerate(options.real):
        if name not in sinks:
            _no_such(_mark(node, "real", index), name, sinks, "sink", flow, problems)
    for name in options.expect:
        if name in options.real and flow.components[name].module != "sink.topic":
            problems.add(
                _mark(node, "expect", name),
                f"{quoted(name)} is real: what it was given is not seen here",
                "leave it out of `real`, or look at `statuses`",
            )


def _check_keys(
    given: Mapping, right: list[str], what: str, flow: Flow, problems: Problems
) -> None:
    for entry in given:
        if entry.key.text not in right:
            _no_such(entry.key.mark, entry.key.text, right, what, flow, problems)


def _no_such(
    mark: Mark, name: str, right: Iterable[str], what: str, flow: Flow, problems: Problems
) -> None:
    names = list(right)
    other = flow.components.get(name)
    if other is not None:
        problems.add(mark, f"{quoted(name)} is no {what}: it is a {other.module}")
        return
    close = problems.suggest(name, names) if nearest(name, names) else None
    listed = f"it has {', '.join(names)}" if names else "it has none"
    problems.add(mark, f"the flow {flow.name} has no {what} {quoted(name)}", close or listed)


def _check_counts(
    node: Mapping, options: CaseOptions, inputs: list[dict[str, list[Input]]], problems: Problems
) -> None:
    for receiver, given in options.statuses.items():
        count = sum(len(one.get(receiver, [])) for one in inputs)
        if given.each is not None and len(given.each) != count:
            problems.add(
                _mark(node, "statuses", receiver),
                f"{len(given.each)} statuses for {count} inputs of {quoted(receiver)}",
                "a single status stands for all",
            )


def _mark(node: Node, *steps: str | int) -> Mark:
    """The place of what these steps lead to, as far as they lead."""
    for step in steps:
        if isinstance(node, Mapping) and step in node.entries:
            node = node.entries[str(step)].value
        elif isinstance(node, Sequence) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
    return node.mark
