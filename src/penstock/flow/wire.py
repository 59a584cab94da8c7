"""A flow as plain JSON values, and back: how the supervisor hands it to the engine's process.

**Secrets included**, so it travels over the inherited socket pair and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.config.flow import Component, Edge, Flow, PluginOptions, Stage
from penstock.config.model import SystemOptions, TopicOptions, WorkflowOptions
from penstock.config.registry import Kind, Shape
from penstock.errors import ConfigError
from penstock.flow.components import registry
from penstock.guarantee import Guarantee


def dump_flow(flow: Flow) -> dict[str, Any]:
    return {
        "name": flow.name,
        "file": str(flow.file),
        "data_dir": str(flow.data_dir),
        "system": flow.system.wire(),
        "components": [_dump_component(one) for one in flow.components.values()],
        "edges": [[edge.source, edge.target, edge.route] for edge in flow.edges],
        "topics": {name: options.wire() for name, options in flow.topics.items()},
        "workflows": {name: options.wire() for name, options in flow.workflows.items()},
        "dead_letter": flow.dead_letter,
        "commit": flow.commit,
        "guarantee": None if flow.guarantee is None else int(flow.guarantee),
    }


def load_flow(data: dict[str, Any]) -> Flow:
    guarantee = data["guarantee"]
    components = [_load_component(one) for one in data["components"]]
    return Flow(
        name=data["name"],
        file=Path(data["file"]),
        data_dir=Path(data["data_dir"]),
        system=SystemOptions.model_validate(data["system"]),
        settings=(),
        components={one.name: one for one in components},
        edges=tuple(Edge(*edge) for edge in data["edges"]),
        topics={name: TopicOptions.model_validate(one) for name, one in data["topics"].items()},
        workflows={
            name: WorkflowOptions.model_validate(one) for name, one in data["workflows"].items()
        },
        dead_letter=data["dead_letter"],
        commit=data["commit"],
        guarantee=None if guarantee is None else Guarantee(guarantee),
        warnings=(),
    )


def _dump_component(one: Component) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "module": one.module,
        "options": one.options.wire(),
        "interceptors": [_dump_stage(stage) for stage in one.interceptors],
        "codec": None if one.codec is None else _dump_stage(one.codec),
        "topic": one.topic,
        "constructor": one.constructor,
    }


def _load_component(data: dict[str, Any]) -> Component:
    common: dict[str, Any] = {
        "name": data["name"],
        "module": data["module"],
        "interceptors": tuple(_load_stage(Kind.INTERCEPTOR, one) for one in data["interceptors"]),
        "codec": None if data["codec"] is None else _load_stage(Kind.CODEC, data["codec"]),
        "topic": data["topic"],
        "constructor": data["constructor"],
    }
    if data["kind"] is None:
        options = PluginOptions.model_validate(data["options"])
        return Component(
            kind=None, options=options, shape=Shape(0, None, 0, None), available=False, **common
        )
    declared = registry().find_module(data["module"])
    if declared is None:
        raise ConfigError(f"{data['name']}: there is no module {data['module']}")
    return Component(
        kind=declared.kind,
        options=declared.options.model_validate(data["options"]),
        shape=declared.shape,
        available=declared.available,
        **common,
    )


def _dump_stage(stage: Stage) -> list[Any]:
    return [stage.name, stage.options.wire()]


def _load_stage(kind: Kind, data: list[Any]) -> Stage:
    name, options = data
    declared = registry().find(kind, name)
    if declared is None:
        raise ConfigError(f"there is no {kind} {name}")
    return Stage(declared.name, declared.options.model_validate(options), declared.available)
