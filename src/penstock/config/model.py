"""The flow file as typed models. `config.loading` reads a file into them; `config.schema` shows them.

Components and the pipeline are read piece by piece, so that one mistake does not hide the next; their
models here say what each piece may hold.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue, WithJsonSchema
from pydantic_core import CoreSchema

from penstock.config.address import LOOPBACK, Address, BindAddress
from penstock.config.options import Options, Seconds, SizeBytes, Texts, Topic
from penstock.guarantee import DECLARABLE, Guarantee
from penstock.limits import (
    MAX_FRAME_BYTES,
    MAX_PARTITIONS,
    MAX_PENDING_BYTES,
    MAX_PROCESSES,
    SEGMENT_AGE_S,
    SEGMENT_BYTES,
    STOP_TIMEOUT_S,
    GiB,
)

ADMIN_PORT = 8080


class RetentionOptions(Options):
    """What may be deleted, oldest first. Without either, everything is kept."""

    age_s: Seconds | None = Field(
        None, gt=0, validation_alias=AliasChoices("age_s", "age", "time", "time_s")
    )
    """Delete what is older than this."""

    size_bytes: SizeBytes | None = Field(
        None, ge=1, validation_alias=AliasChoices("size_bytes", "size")
    )
    """Delete the oldest when a partition is larger than this."""


KEPT = "kept"


def _retention(value: Any) -> Any:
    return {} if value == KEPT else value


class _OrKept:
    """Tells the schema of the word that stands for no limits."""

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(core_schema), {"const": KEPT}]}


Retention = Annotated[RetentionOptions, BeforeValidator(_retention), _OrKept()]
Compression = Literal["none", "lz4", "zstd"]


class StatedOptions(Options):
    """Options of which it counts whether they were given: a topic that is there keeps the others as they are."""

    def wire(self) -> dict[str, Any]:
        return {
            name: value for name, value in super().wire().items() if name in self.model_fields_set
        }


class TopicOptions(StatedOptions):
    """A topic that the flow defines. What is not given comes from `system.log`."""

    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    """How many partitions. May only grow."""

    replication: int | None = Field(None, ge=1, le=100)
    """Copies of each partition, on Kafka."""

    retention: Retention | None = None
    """What may be deleted: `kept`, or `{time: 7d, size: 10GiB}`."""

    ids: Literal["log", "producer"] = "log"
    """Who numbers the messages. `producer` needs one partition, and ids that rise."""

    compression: Compression | None = None
    """How sealed segments are packed."""

    segment_bytes: SizeBytes | None = Field(None, ge=MAX_FRAME_BYTES, le=16 * GiB)
    """A segment is sealed at this size."""

    segment_age_s: Seconds | None = Field(None, gt=0)
    """A segment is sealed at this age."""

    @model_validator(mode="after")
    def _one_partition(self) -> Self:
        if self.ids == "producer" and self.partitions not in (None, 1):
            raise ValueError("`ids: producer` needs `partitions: 1`, or the ids could not rise")
        return self


class LogOptions(StatedOptions):
    """Where topics are kept, and what those have that do not say otherwise."""

    engine: Literal["embedded", "kafka"] = "embedded"
    """`embedded`: files in the data directory; `kafka`: a Kafka cluster."""

    servers: Texts = Field(default_factory=list)
    """The Kafka brokers to ask first, `host:port`."""

    partitions: int | None = Field(None, ge=1, le=MAX_PARTITIONS)
    """Partitions of a topic. Default: one for each process (`maxprocs`)."""

    replication: int = Field(3, ge=1, le=100)
    """Copies of each partition, on Kafka."""

    retention: Retention = Field(default_factory=RetentionOptions)
    """What may be deleted: `kept`, or `{time: 7d, size: 10GiB}`. Parks and internal topics go when they were read."""

    compression: Compression = "none"
    """How sealed segments are packed."""

    segment_bytes: SizeBytes = Field(SEGMENT_BYTES, ge=MAX_FRAME_BYTES, le=16 * GiB)
    """A segment is sealed at this size."""

    segment_age_s: Seconds = Field(SEGMENT_AGE_S, gt=0)
    """A segment is sealed at this age, so that quiet topics are packed too."""

    max_pending_bytes: SizeBytes = Field(MAX_PENDING_BYTES, ge=1)
    """Accepted and not yet durable, per partition. Past it senders are held back."""

    @model_validator(mode="after")
    def _servers_known(self) -> Self:
        if self.engine == "kafka" and not self.servers:
            raise ValueError("`engine: kafka` needs `servers`, the brokers to ask first")
        return self


class AdminOptions(Options):
    """The admin API: health, metrics, topics."""

    enabled: bool = True
    """Whether to offer it."""

    bind: BindAddress = Field(
        Address(LOOPBACK, ADMIN_PORT), validation_alias=AliasChoices("bind", "bind_addr")
    )
    """Where it listens."""


class EngineOptions(Options):
    """The process that runs the pipeline, on Spark."""

    enabled: bool = True
    """Whether the pipeline runs. Without it, messages wait in their topics."""

    master: str = Field("local[*]", min_length=1)
    """Where Spark runs: `local[N]` in this process, or `spark://HOST:PORT`."""

    conf: dict[str, str] = Field(default_factory=dict)
    """Settings of Spark's own, by name."""


class SystemOptions(Options):
    """Settings of the whole. Each can also come from the environment or the command line."""

    maxprocs: int = Field(
        1,
        ge=1,
        le=MAX_PROCESSES,
        validation_alias=AliasChoices("maxprocs", "max_procs", "max_proc"),
    )
    """How many edge processes may run."""

    data_dir: str | None = Field(None, min_length=1)
    """Where topics are kept. Default: `.penstock` beside the flow file."""

    stop_timeout_s: Seconds = Field(STOP_TIMEOUT_S, gt=0)
    """A graceful stop that has not finished by then becomes a hard one."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important log lines to write."""

    log_format: Literal["auto", "plain", "json"] = "auto"
    """How log lines look: `auto` is coloured on a terminal and plain in a pipe."""

    admin: AdminOptions = Field(default_factory=AdminOptions)
    """The admin API."""

    log: LogOptions = Field(default_factory=LogOptions)
    """Where topics are kept, and their defaults."""

    engine: EngineOptions = Field(default_factory=EngineOptions)
    """The pipeline on Spark."""


class TriggerOptions(Options):
    """What starts a workflow."""

    topic: Topic
    """Every event on this topic starts one instance."""

    types: Texts = Field(default_factory=list)
    """Only events of these types; `*` stands for one part of the name. Default: all."""


class OutputOptions(Options):
    """What a stage gives."""

    topic: Topic
    """Where it is written."""


class StageOptions(Options):
    """One step of a workflow."""

    after: Texts = Field(default_factory=list)
    """Stages that must have ended."""

    dependencies: Texts = Field(default_factory=list)
    """Outputs to wait for and be given: `stage.output`, or `root_event`."""

    outputs: dict[str, OutputOptions] = Field(default_factory=dict)
    """What it gives. All of it is required, nothing else is accepted."""


class WorkflowOptions(Options):
    """A graph of stages, run for every event on a topic."""

    trigger: TriggerOptions
    """What starts it."""

    max_parallel: int | None = Field(None, ge=1)
    """Instances at work at the same time. Default: any number."""

    stages: dict[str, StageOptions] = Field(min_length=1)
    """The steps, by name."""


def _guarantee(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    name = value.replace("-", "_").upper()
    found = Guarantee.__members__.get(name)
    if found not in DECLARABLE:
        raise ValueError(f"expected {', '.join(str(level) for level in DECLARABLE)}")
    return found


DeclaredGuarantee = Annotated[
    Guarantee,
    BeforeValidator(_guarantee),
    WithJsonSchema(
        {
            "enum": [
                text for level in DECLARABLE for text in (str(level), str(level).replace("_", "-"))
            ]
        }
    ),
]


class FlowOptions(Options):
    """What the flow file says of the flow as a whole."""

    name: str | None = Field(None, min_length=1)
    """The flow's name. Default: the file's name without its ending."""

    dead_letter: Topic | None = None
    """The topic for messages that did not end in done. Default: the flow's name and `.dead`."""

    commit: Literal["branch", "atomic"] = "branch"
    """`branch`: a sink that fails holds back its own branch only; `atomic`: all sinks or none."""

    guarantee: DeclaredGuarantee | None = None
    """What every path must promise. A flow that cannot is refused."""

    version: str | None = None
    """Read from files of the original relay. Has no effect."""


class ComponentOptions(Options):
    """One entry of `components`."""

    module: str | None = Field(None, min_length=1)
    """What it is: `receiver.*`, `link.*`, `sink.*` or `peer.*`; see `penstock list`."""

    plugin: str | None = Field(None, min_length=1, pattern=r"^[A-Za-z_][A-Za-z0-9_.-]*$")
    """Instead of a module: a plugin, found on the plugin path."""

    constructor: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_.]*$",
        validation_alias=AliasChoices("constructor", "builder"),
    )
    """Of a plugin: the callable that makes the component."""

    codec: Any = None
    """How payloads become values: a name, or a map of one name to its options. Default: bytes."""

    interceptors: Any = None
    """How bytes become payloads, in order: names, or maps of one name to its options."""

    params: Any = None
    """The options of the module; see `penstock list`."""

    topic: Topic | None = None
    """Of a receiver: the topic behind it. Default: the flow's name, a dot, and the component's."""


class WiringOptions(Options):
    """One entry of `pipeline`: where a component's messages go."""

    connect: Texts | None = None
    """To this component. A list means `links`."""

    links: Texts | None = None
    """To every one of these. Beside `connect`: from every one of these."""

    routes: dict[str, str] | None = None
    """Of a router: to at most one of these, by key. The key `default` is for what fits no other."""

    default: str | None = Field(None, min_length=1)
    """Of a router: where to send what fits no route."""
