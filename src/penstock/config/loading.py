"""From a file to a `Flow`: read it, check all of it, and report every mistake at once."""

from __future__ import annotations

import os
from collections.abc import Mapping as AnyMapping
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.config.components import ComponentReader
from penstock.config.definitions import read_topics, read_workflows
from penstock.config.flow import Flow
from penstock.config.guarantees import path_guarantees
from penstock.config.ids import check_ids
from penstock.config.interpolate import interpolate
from penstock.config.located import Mapping, Node, decode, describe, is_null, parse
from penstock.config.model import FlowOptions, SystemOptions
from penstock.config.names import check_name, name_from
from penstock.config.options import Options, Socket, field_named
from penstock.config.problems import (
    FlowFileError,
    Mark,
    Problem,
    Problems,
    quoted,
)
from penstock.config.reading import read_options, refuse_secrets
from penstock.config.registry import Registry
from penstock.config.settings import COMMAND_LINE, Setting, resolve
from penstock.config.wiring import Defined, Wires, check_wires, read_pipeline
from penstock.errors import InvalidName
from penstock.limits import MAX_COMPONENTS, MAX_FLOW_FILE_BYTES

DEFAULT_DATA_DIR = ".penstock"
SECTIONS = ("system", "components", "pipeline", "topics", "workflows")
_COMPONENTS_ALIAS = "actors"  # in the original relay's newer files
_EXTENSION = "x-"  # keys for the writer's own use: anchors, notes


@dataclass(frozen=True, slots=True)
class Loaded:
    """What came of a file. `flow` is None if there was an error among the problems."""

    flow: Flow | None
    problems: list[Problem]
    source: str | None


def load(
    path: str | Path,
    *,
    registry: Registry,
    overrides: AnyMapping[str, str] | None = None,
    environment: AnyMapping[str, str] | None = None,
) -> Flow:
    """The flow in a file; FlowFileError with every mistake if there is one.

    `overrides` are settings from the command line (`{"admin.bind": ":9090"}`); `environment` is the
    process's own unless given. Warnings do not stop it: they are in `Flow.warnings`.
    """
    loaded = inspect(path, registry=registry, overrides=overrides, environment=environment)
    if loaded.flow is None:
        raise FlowFileError(loaded.problems, loaded.source)
    return loaded.flow


def inspect(
    path: str | Path,
    *,
    registry: Registry,
    overrides: AnyMapping[str, str] | None = None,
    environment: AnyMapping[str, str] | None = None,
) -> Loaded:
    """The same without raising: for those who show the problems."""
    try:
        with open(path, "rb") as file:
            # One byte more than is allowed, to see that it is too large; not all of it.
            data = file.read(MAX_FLOW_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        problem = Problem(str(path), 0, 0, f"the file cannot be read: {reason}")
        return Loaded(None, [problem], None)
    return inspect_bytes(
        data, path, registry=registry, overrides=overrides, environment=environment
    )


def inspect_bytes(
    data: bytes,
    path: str | Path,
    *,
    registry: Registry,
    overrides: AnyMapping[str, str] | None = None,
    environment: AnyMapping[str, str] | None = None,
) -> Loaded:
    """The same for what has been read already. `path` names it, and is where it would be."""
    problems = Problems(str(path))
    text = decode(data, problems)
    root = parse(text, problems) if text is not None else None
    if text is None or (root is None and problems.any_error):
        return Loaded(None, problems.sorted(), text)
    if root is None or is_null(root):
        problems.add(Mark(1, 1), "the file is empty", "it needs at least `components`")
    elif not isinstance(root, Mapping):
        expected = "expected a mapping with `components` and `pipeline`"
        problems.add(root.mark, f"{expected}, found {describe(root)}")
    else:
        variables = os.environ if environment is None else environment
        interpolate(root, variables, Path(path).parent, problems)
        loader = _Loader(Path(path), root, registry, problems)
        flow = loader.load(variables, overrides or {})
        return Loaded(None if problems.any_error else flow, problems.sorted(), text)
    return Loaded(None, problems.sorted(), text)


class _Loader:
    def __init__(self, path: Path, root: Mapping, registry: Registry, problems: Problems) -> None:
        self._path = path
        self._root = root
        self._registry = registry
        self._problems = problems

    def load(self, environment: AnyMapping[str, str], overrides: AnyMapping[str, str]) -> Flow:
        own = self._flow_options()
        name = self._name(own)
        system, settings = resolve(self._root.get("system"), environment, overrides, self._problems)
        topics = read_topics(self._root.get("topics"), self._problems)
        workflows = read_workflows(self._root.get("workflows"), self._problems)
        defined = self._components(name)
        wires = read_pipeline(self._root.get("pipeline"), defined, self._problems)
        check_wires(wires, defined, self._problems)
        self._check_sockets(defined, system)
        self._check_replicas(defined, wires)
        dead_letter = own.dead_letter or f"{name}.dead"
        self._check_dead_letter(dead_letter, defined)
        check_ids(topics, dead_letter, self._dead_letter_mark(), defined, self._problems)
        components = {
            name: one.component for name, one in defined.items() if one.component is not None
        }
        flow = Flow(
            name=name,
            file=self._path,
            data_dir=self._data_dir(system, settings),
            system=system,
            settings=tuple(settings),
            components=components,
            edges=tuple(wires.edges),
            topics=topics,
            workflows=workflows,
            dead_letter=dead_letter,
            commit=own.commit,
            guarantee=own.guarantee,
            warnings=(),
        )
        self._check_guarantee(flow)
        warnings = [one for one in self._problems.sorted() if one.severity == "warning"]
        return replace(flow, warnings=tuple(warnings))

    def _flow_options(self) -> FlowOptions:
        """What the file says of the flow as a whole; unknown keys are mistakes."""
        own = Mapping(self._root.mark)
        known = [*FlowOptions.model_fields, *SECTIONS]
        for key, entry in self._root.entries.items():
            if key in FlowOptions.model_fields:
                own.entries[key] = entry
            elif (
                key not in SECTIONS and key != _COMPONENTS_ALIAS and not key.startswith(_EXTENSION)
            ):
                close = self._problems.suggest(key, known) or f"it has {', '.join(known)}"
                self._problems.add(
                    entry.key.mark, f"a flow file has no section {quoted(key)}", close
                )
        refuse_secrets(own, self._problems)
        mark = self._root.mark
        return read_options(FlowOptions, own, mark, self._problems, "the flow") or FlowOptions()

    def _name(self, own: FlowOptions) -> str:
        if own.name is None:
            name = name_from(self._path.stem)
            if not name:
                self._problems.add(
                    Mark(1, 1), "the file's name makes no name for the flow", "give it a `name`"
                )
            return name or "flow"
        try:
            return check_name("flow", own.name)
        except InvalidName as error:
            self._problems.add(self._root.entries["name"].value.mark, str(error))
            return name_from(own.name) or "flow"

    def _components(self, flow: str) -> dict[str, Defined]:
        node = self._root.get("components")
        alias = self._root.entries.get(_COMPONENTS_ALIAS)
        if alias is not None:
            if node is not None:
                self._problems.add(
                    alias.key.mark, "`actors` is another name for `components`; give only one"
                )
            else:
                node = alias.value
        if node is None or is_null(node) or (isinstance(node, Mapping) and not node.entries):
            mark = Mark(1, 1) if node is None else node.mark
            self._problems.add(mark, "there are no `components`", "a flow has at least one")
            return {}
        if not isinstance(node, Mapping):
            message = f"`components`: expected a mapping, found {describe(node)}"
            self._problems.add(node.mark, message)
            return {}
        if len(node.entries) > MAX_COMPONENTS:
            count = len(node.entries)
            self._problems.add(
                node.mark, f"{count} components; a flow has at most {MAX_COMPONENTS}"
            )
            return {}
        reader = ComponentReader(flow, self._registry, self._problems)
        return {
            name: Defined(entry.key.mark, reader.read(name, entry))
            for name, entry in node.entries.items()
        }

    def _params(self, name: str) -> Node | None:
        sections = [self._root.get("components"), self._root.get(_COMPONENTS_ALIAS)]
        for section in sections:
            one = section.get(name) if isinstance(section, Mapping) else None
            if isinstance(one, Mapping):
                return one.get("params")
        return None

    def _option_mark(self, name: str, options: Options, fields: tuple[str, ...]) -> Mark | None:
        """Where the first of these options is written, under whatever spelling."""
        params = self._params(name)
        if isinstance(params, Mapping):
            for key, entry in params.entries.items():
                if field_named(type(options), key) in fields:
                    return entry.value.mark
        return None

    def _check_sockets(self, defined: dict[str, Defined], system: SystemOptions) -> None:
        """That no two components listen on the same."""
        taken: dict[tuple[str, object], list[tuple[str, Socket]]] = {}
        if system.admin.enabled:
            socket = Socket("tcp", system.admin.bind)
            taken[_socket_key(socket)] = [("the admin API", socket)]
        for name, one in defined.items():
            if one.component is None:
                continue
            options = one.component.options
            for socket in options.listens():
                others = taken.setdefault(_socket_key(socket), [])
                for other, theirs in others:
                    if socket.overlaps(theirs):
                        where = self._option_mark(name, options, ("bind", "path", "listeners"))
                        self._problems.add(
                            where or one.mark,
                            f"{quoted(name)} listens on {socket}, where {other} does already",
                            f"{other} has {theirs.place}" if theirs != socket else None,
                        )
                        break
                others.append((quoted(name), socket))

    def _check_replicas(self, defined: dict[str, Defined], wires: Wires) -> None:
        for name, one in defined.items():
            replicas = getattr(one.component and one.component.options, "replicas", None)
            if one.component is None or not isinstance(replicas, int):
                continue
            links = sum(1 for edge in wires.edges if edge.source == name)
            if links and replicas > links:
                where = self._option_mark(name, one.component.options, ("replicas",))
                self._problems.add(
                    where or one.mark,
                    f"{quoted(name)} makes {replicas} copies but has {links} links",
                )

    def _dead_letter_mark(self) -> Mark | None:
        entry = self._root.entries.get("dead_letter")
        return None if entry is None else entry.value.mark

    def _check_dead_letter(self, topic: str, defined: dict[str, Defined]) -> None:
        for name, one in defined.items():
            if one.component is not None and one.component.topic == topic:
                self._problems.add(
                    self._dead_letter_mark() or one.mark,
                    f"dead letters would go to {quoted(topic)}, the topic of {quoted(name)}",
                    "they would come back in",
                )

    def _check_guarantee(self, flow: Flow) -> None:
        if flow.guarantee is None or self._problems.any_error:
            return
        mark = self._root.entries["guarantee"].value.mark
        for path in path_guarantees(flow.components, flow.edges):
            if path.guarantee < flow.guarantee:
                self._problems.add(
                    mark,
                    f"{path.source} → {path.sink} is {path.guarantee}, not {flow.guarantee}: "
                    f"{quoted(str(path.limited_by))} limits it",
                    path.reason,
                )

    def _data_dir(self, system: SystemOptions, settings: list[Setting]) -> Path:
        """A path in the file begins beside the file; one from elsewhere at the working directory."""
        folder = self._path.parent
        if system.data_dir is None:
            return folder / DEFAULT_DATA_DIR
        [setting] = [one for one in settings if one.name == "data_dir"]
        given_here = setting.origin == COMMAND_LINE or setting.origin.startswith("environment")
        return Path(system.data_dir) if given_here else folder / system.data_dir


def _socket_key(socket: Socket) -> tuple[str, object]:
    return socket.transport, getattr(socket.place, "port", socket.place)
