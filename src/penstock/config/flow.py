"""A flow, read and checked: what the rest of Penstock works with. It holds no text and no marks."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from penstock.config.model import SystemOptions, TopicOptions, WorkflowOptions
from penstock.config.options import Options
from penstock.config.problems import Problem
from penstock.config.registry import Kind, Shape
from penstock.config.settings import Setting
from penstock.guarantee import Guarantee


class PluginOptions(Options):
    """What a plugin is given: it alone knows what it takes."""

    params: dict[str, Any] = Field(default_factory=dict)
    """The options, as the file has them."""

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.UNKNOWN, "what a plugin promises is not known before it runs"


@dataclass(frozen=True, slots=True)
class Stage:
    """An interceptor or a codec with its options."""

    name: str
    options: Options
    available: bool


@dataclass(frozen=True, slots=True)
class Component:
    """One component. `kind` is None for a plugin: what it is shows when it is made."""

    name: str
    kind: Kind | None
    module: str  # in its preferred spelling; `plugin.NAME` for a plugin
    options: Options
    interceptors: tuple[Stage, ...]
    codec: Stage | None
    topic: str | None  # of receivers and peers: the topic behind it
    constructor: str | None
    shape: Shape
    available: bool

    @property
    def is_source(self) -> bool:
        return self.kind in (Kind.RECEIVER, Kind.PEER)

    @property
    def is_end(self) -> bool:
        """Whether what goes in stops here. A peer's two sides are not connected inside it."""
        return self.kind in (Kind.SINK, Kind.PEER)


@dataclass(frozen=True, slots=True)
class Edge:
    """Messages go from `source` to `target`: all of them, or those of one route."""

    source: str
    target: str
    route: str | None = None

    @property
    def is_default(self) -> bool:
        return self.route == DEFAULT_ROUTE


DEFAULT_ROUTE = "default"
"""The route for what fits no other."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something that the flow uses and this version cannot run yet."""

    component: str | None
    what: str  # `receiver.ws`, `interceptor zstd`, `option sync`


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    file: Path
    data_dir: Path = field(repr=False)  # it may have come from a secret
    system: SystemOptions
    settings: tuple[Setting, ...] = field(repr=False)
    components: dict[str, Component]  # in the order of the file
    edges: tuple[Edge, ...]
    topics: dict[str, TopicOptions]
    workflows: dict[str, WorkflowOptions]
    dead_letter: str
    commit: Literal["branch", "atomic"]
    guarantee: Guarantee | None
    warnings: tuple[Problem, ...] = field(repr=False)

    def receivers(self) -> list[Component]:
        return [one for one in self.components.values() if one.kind is Kind.RECEIVER]

    def outputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.source == name]

    def inputs(self, name: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.target == name]

    def topic_options(self, topic: str) -> TopicOptions:
        """What the flow asks of a topic, by itself or for all in `system.log`. Only `partitions` has a
        default: a topic that is there keeps what the flow says nothing of."""
        log = self.system.log
        own = self.topics.get(topic, TopicOptions())
        asked = [
            int(one.options.partitions)  # type: ignore[attr-defined]
            for one in self.components.values()
            if one.topic == topic and getattr(one.options, "partitions", None)
        ]
        usual = 1 if own.ids == "producer" else log.partitions or self.system.maxprocs
        general = {
            name: getattr(log, name)
            for name in (
                "replication",
                "retention",
                "compression",
                "segment_bytes",
                "segment_age_s",
            )
            if name in log.model_fields_set
        }
        given = {name: getattr(own, name) for name in own.model_fields_set}
        wanted = general | {name: value for name, value in given.items() if value is not None}
        partitions = own.partitions or max(asked, default=usual)
        return TopicOptions.model_validate(wanted | {"partitions": partitions})

    def missing(self) -> list[Missing]:
        """What this version cannot run yet, in the order of the file."""
        found = []
        if self.system.log.engine != "embedded":
            found.append(Missing(None, f"log engine {self.system.log.engine}"))
        for one in self.components.values():
            if not one.available:
                found.append(Missing(one.name, one.module))
            found += [
                Missing(one.name, f"interceptor {stage.name}")
                for stage in one.interceptors
                if not stage.available
            ]
            if one.codec is not None and not one.codec.available:
                found.append(Missing(one.name, f"codec {one.codec.name}"))
        found += [Missing(None, f"workflow {name}") for name in self.workflows]
        return found
