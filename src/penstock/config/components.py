"""The components of a flow file: each entry becomes a typed component, or problems."""

from __future__ import annotations

import re
from dataclasses import replace

from penstock.config.flow import Component, PluginOptions, Stage
from penstock.config.located import Entry, Mapping, Node, Scalar, Sequence, describe, is_null
from penstock.config.model import ComponentOptions
from penstock.config.names import check_topic
from penstock.config.options import Options
from penstock.config.problems import Mark, Problems, quoted
from penstock.config.reading import read_options, secret_scalars, values
from penstock.config.registry import Declaration, Kind, Registry, Shape
from penstock.config.spelling import nearest
from penstock.errors import InvalidName
from penstock.limits import MAX_NAME_CHARS

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SCHEME = re.compile(r"([a-z]+)://")
_ANY_SHAPE = Shape(min_inputs=0, min_outputs=0, max_outputs=None)

# The original relay's newer files leave it to the address what a sink or a receiver is.
_BY_ADDRESS = {"core.sink": Kind.SINK, "core.receiver": Kind.RECEIVER}
_NAMES_OF_SCHEMES = {"file": "dumper"}


class ComponentReader:
    def __init__(self, flow: str, registry: Registry, problems: Problems) -> None:
        self._flow = flow
        self._registry = registry
        self._problems = problems

    def read(self, name: str, entry: Entry) -> Component | None:
        """The component, or None if too much is wrong with it to go on."""
        mark, node = entry.key.mark, entry.value
        what = f"the component {quoted(name)}"
        if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name):
            self._problems.add(
                mark,
                f"{what}: a name has 1 to {MAX_NAME_CHARS} letters, digits, `_`, `-` and `.`",
            )
        if not isinstance(node, Mapping):
            self._problems.add(
                node.mark if not is_null(node) else mark,
                f"{what}: expected a mapping with `module`, found {describe(node)}",
            )
            return None
        self._refuse_secrets(node)
        spec = read_options(ComponentOptions, node, mark, self._problems, what)
        if spec is None:
            return None
        if spec.plugin is not None:
            return self._plugin(name, spec, node)
        return self._module(name, mark, spec, node)

    def _refuse_secrets(self, node: Mapping) -> None:
        for path, secret in secret_scalars(node):
            if path[0] not in ("params", "interceptors", "codec") or len(path) == 1:
                key = quoted(str(path[0]))
                self._problems.add(secret.mark, f"{key} is shown to everyone: it takes no secret")
                secret.broken = True

    def _plugin(self, name: str, spec: ComponentOptions, node: Mapping) -> Component | None:
        what = f"the plugin {quoted(str(spec.plugin))}"
        mark = node.entries["plugin"].key.mark
        if "module" in node.entries:
            self._problems.add(mark, f"{what}: give either `plugin` or `module`, not both")
        if spec.constructor is None and not {"constructor", "builder"} & set(node.entries):
            self._problems.add(
                mark, f"{what} needs `constructor`", "the callable that makes the component"
            )
        params = node.get("params")
        options = PluginOptions()
        if isinstance(params, Mapping):
            options = PluginOptions(params=values(params))
            if any(True for _ in secret_scalars(params)):
                options.mark_secret(("params",))
        elif params is not None and not is_null(params):
            self._problems.add(
                params.mark, f"{what}: `params`: expected a mapping, found {describe(params)}"
            )
        return Component(
            name=name,
            kind=None,
            module=f"plugin.{spec.plugin}",
            options=options,
            interceptors=tuple(self._interceptors(node, what)),
            codec=self._codec(node.get("codec"), what),
            topic=spec.topic,
            constructor=spec.constructor,
            shape=_ANY_SHAPE,
            available=False,
        )

    def _module(
        self, name: str, mark: Mark, spec: ComponentOptions, node: Mapping
    ) -> Component | None:
        module = node.get("module")
        if module is None or is_null(module):
            # A key that is nearly `module` has been reported already.
            others = [key for key in node.entries if key not in ("module", "plugin")]
            if not any(nearest(key, ["module", "plugin"]) for key in others):
                self._problems.add(
                    mark,
                    f"the component {quoted(name)} needs `module` or `plugin`",
                    "see `penstock list`",
                )
            return None
        if spec.module is None:
            return None  # what is wrong with it has been said
        declaration = self._declaration(spec.module.strip(), module.mark, node.get("params"))
        if declaration is None:
            return None
        what = declaration.module
        if "constructor" in node.entries:
            place = node.entries["constructor"].key.mark
            self._problems.add(place, f"{what} takes no `constructor`: it is not a plugin")
        options = read_options(declaration.options, node.get("params"), mark, self._problems, what)
        if options is None:
            return None
        self._check_carries(declaration, node)
        component = Component(
            name=name,
            kind=declaration.kind,
            module=declaration.module,
            options=options,
            interceptors=tuple(self._interceptors(node, what)),
            codec=self._codec(node.get("codec"), what),
            topic=self._topic(name, mark, declaration, spec, options),
            constructor=None,
            shape=declaration.shape,
            available=declaration.available,
        )
        return self._with_default_interceptors(component, node)

    def _declaration(self, module: str, mark: Mark, params: Node | None) -> Declaration | None:
        found = self._registry.find_module(module)
        if found is None and module in _BY_ADDRESS:
            found = self._by_address(_BY_ADDRESS[module], params)
        if found is None:
            close = self._problems.suggest(module, self._registry.module_names())
            hint = close or "see `penstock list`"
            self._problems.add(mark, f"there is no module {quoted(module)}", hint)
        return found

    def _by_address(self, kind: Kind, params: Node | None) -> Declaration | None:
        bind = params.get("bind") if isinstance(params, Mapping) else None
        scheme = _SCHEME.match(bind.text) if isinstance(bind, Scalar) else None
        if scheme is None:
            return None
        return self._registry.find(kind, _NAMES_OF_SCHEMES.get(scheme[1], scheme[1]))

    def _check_carries(self, declaration: Declaration, node: Mapping) -> None:
        if declaration.kind is Kind.LINK:
            for key in ("interceptors", "codec"):
                if key in node.entries:
                    self._problems.add(
                        node.entries[key].key.mark,
                        f"{declaration.module} takes no `{key}`: no bytes come or go there",
                        "receivers, sinks and peers do",
                    )
        if "topic" in node.entries and declaration.kind not in (Kind.RECEIVER, Kind.PEER):
            place = node.entries["topic"].key.mark
            hint = "put it in `params`" if "topic" in declaration.options.model_fields else None
            self._problems.add(place, f"{declaration.module} has no topic behind it", hint)

    def _topic(
        self,
        name: str,
        mark: Mark,
        declaration: Declaration,
        spec: ComponentOptions,
        options: Options,
    ) -> str | None:
        if declaration.kind not in (Kind.RECEIVER, Kind.PEER):
            return None
        in_params = getattr(options, "topic", None)
        if spec.topic and in_params and spec.topic != in_params:
            self._problems.add(
                mark, f"{quoted(name)} has two topics, {spec.topic} and {in_params}; give one"
            )
        topic = spec.topic or in_params or f"{self._flow}.{name}"
        try:
            return check_topic(str(topic))
        except InvalidName as error:
            self._problems.add(mark, str(error), "give it a `topic`")
            return None

    def _interceptors(self, node: Mapping, what: str) -> list[Stage]:
        given = node.get("interceptors")
        if given is None or is_null(given):
            return []
        items = given.items if isinstance(given, Sequence) else [given]
        found = [self._stage(Kind.INTERCEPTOR, item, what) for item in items]
        return [stage for stage in found if stage is not None]

    def _codec(self, node: Node | None, what: str) -> Stage | None:
        return None if node is None or is_null(node) else self._stage(Kind.CODEC, node, what)

    def _stage(self, kind: Kind, node: Node, what: str) -> Stage | None:
        """A name, or a map of one name to its options."""
        name: Scalar | None = None
        options: Node | None = None
        if isinstance(node, Scalar) and not is_null(node):
            name = node
        elif isinstance(node, Mapping) and len(node.entries) == 1:
            [entry] = node.entries.values()
            name, options = entry.key, entry.value
        if name is None:
            expected = f"expected the name of one {kind}, or a map of its name to its options"
            self._problems.add(node.mark, f"{what}: {expected}; found {describe(node)}")
            return None
        if name.broken:
            return None
        if name.secret:
            self._problems.add(name.mark, f"a secret cannot name a {kind}")
            return None
        found = self._registry.find(kind, name.text)
        if found is None:
            close = self._problems.suggest(name.text, self._registry.names(kind))
            hint = close or f"see `penstock list {kind}`"
            self._problems.add(name.mark, f"there is no {kind} {quoted(name.text)}", hint)
            return None
        read = read_options(
            found.options, options, name.mark, self._problems, f"the {kind} {quoted(found.name)}"
        )
        return None if read is None else Stage(found.name, read, found.available)

    def _with_default_interceptors(self, component: Component, node: Mapping) -> Component:
        """Where nothing is said of interceptors; and a warning where streams would not be cut."""
        usual = component.options.default_interceptors()
        given = node.get("interceptors")
        if given is None:
            stages = []
            for name in usual:
                found = self._registry.find(Kind.INTERCEPTOR, name)
                if found is not None:
                    stages.append(Stage(found.name, found.options(), found.available))
            return replace(component, interceptors=tuple(stages))
        count = len(given.items) if isinstance(given, Sequence) else int(not is_null(given))
        if (
            usual
            and len(component.interceptors)
            == count  # what is misspelt may be the one that is meant
            and component.kind is Kind.RECEIVER
            and not any(stage.options.cuts for stage in component.interceptors)
        ):
            self._problems.warn(
                node.entries["interceptors"].key.mark,
                f"{quoted(component.name)}: no interceptor says where a message ends",
                "add `lines`, `separate` or `length_prefixed`",
            )
        return component
