"""The definitions that a flow file may hold beside its flow: topics and workflows."""

from __future__ import annotations

from penstock.config.cycles import find_cycles
from penstock.config.located import Mapping, Node, Scalar, Sequence, describe, is_null
from penstock.config.model import StageOptions, TopicOptions, WorkflowOptions
from penstock.config.names import check_name, check_topic
from penstock.config.problems import Mark, Problems, quoted
from penstock.config.reading import read_options, refuse_secrets
from penstock.errors import InvalidName

ROOT_EVENT = "root_event"
"""As a dependency: the event that started the workflow."""


def read_topics(node: Node | None, problems: Problems) -> dict[str, TopicOptions]:
    found = {}
    for name, mark, value in _entries(node, "topics", problems):
        try:
            check_topic(name)
        except InvalidName as error:
            problems.add(mark, str(error))
        options = read_options(TopicOptions, value, mark, problems, f"the topic {quoted(name)}")
        if options is not None:
            found[name] = options
    return found


def read_workflows(node: Node | None, problems: Problems) -> dict[str, WorkflowOptions]:
    found = {}
    for name, mark, value in _entries(node, "workflows", problems):
        what = f"the workflow {quoted(name)}"
        try:
            check_name("workflow", name)
        except InvalidName as error:
            problems.add(mark, str(error))
        options = read_options(WorkflowOptions, value, mark, problems, what)
        if options is not None and isinstance(value, Mapping):
            found[name] = options
            _check_stages(options.stages, value.get("stages"), what, problems)
    return found


def _entries(node: Node | None, key: str, problems: Problems) -> list[tuple[str, Mark, Node]]:
    if node is None or is_null(node):
        return []
    if not isinstance(node, Mapping):
        problems.add(node.mark, f"`{key}`: expected a mapping, found {describe(node)}")
        return []
    refuse_secrets(node, problems)
    return [(name, entry.key.mark, entry.value) for name, entry in node.entries.items()]


def _check_stages(
    stages: dict[str, StageOptions], node: Node | None, what: str, problems: Problems
) -> None:
    """That what stages wait for exists, and that no two wait for each other."""
    if not isinstance(node, Mapping):
        return
    outputs = [f"{name}.{out}" for name, stage in stages.items() for out in stage.outputs]
    behind: dict[str, list[str]] = {name: [] for name in stages}
    for name in stages:
        stage = node.get(name)
        if not isinstance(stage, Mapping):
            continue
        for wanted, mark in _texts(stage.get("after")):
            if wanted in stages:
                behind[wanted].append(name)
            else:
                close = problems.suggest(wanted, list(stages))
                problems.add(mark, f"{what} has no stage {quoted(wanted)}", close)
        for wanted, mark in _texts(stage.get("dependencies")):
            if wanted in outputs:
                behind[wanted.rpartition(".")[0]].append(name)
            elif wanted != ROOT_EVENT:
                close = problems.suggest(wanted, [*outputs, ROOT_EVENT])
                problems.add(mark, f"{what}: no stage gives {quoted(wanted)}", close)
    for cycle in find_cycles(behind):
        place = node.entries[cycle[0]].key.mark
        path = " → ".join([*cycle, cycle[0]])
        problems.add(place, f"{what}: stages wait for each other: {path}")


def _texts(node: Node | None) -> list[tuple[str, Mark]]:
    if isinstance(node, Sequence):
        return [pair for item in node.items for pair in _texts(item)]
    if isinstance(node, Scalar) and not node.is_null and not node.broken:
        return [(node.text, node.mark)]
    return []
