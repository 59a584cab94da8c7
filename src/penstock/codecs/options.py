"""The options of every codec. In a flow file: a name, or a map of one name to its options."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from penstock.config.options import NoOptions, Options, Texts
from penstock.config.registry import Kind, declare


@declare(Kind.CODEC, "json", "JSON, one value a payload.", available=True)
class JsonOptions(Options):
    schema_ddl: str | None = Field(None, min_length=1)
    """The columns and their types, as Spark writes them: `id BIGINT, name STRING`."""


@declare(Kind.CODEC, "msgpack", "MessagePack.", available=True)
class MsgpackOptions(Options):
    schema_ddl: str | None = Field(None, min_length=1)
    """The columns and their types, as Spark writes them: `id BIGINT, name STRING`."""


@declare(Kind.CODEC, "csv", "Comma-separated values, one row a payload.", available=True)
class CsvOptions(Options):
    delimiter: str = Field(",", min_length=1, max_length=1)
    """What stands between two fields."""

    quote: str = Field('"', min_length=1, max_length=1)
    """What stands around a field that holds a delimiter."""

    columns: Texts = Field(default_factory=list)
    """The names of the fields, in order."""


@declare(Kind.CODEC, "avro", "Avro, without the container file.")
class AvroOptions(Options):
    schema_file: str = Field(min_length=1)
    """The file with the schema, JSON."""


@declare(Kind.CODEC, "protobuf", "Protocol Buffers.")
class ProtobufOptions(Options):
    descriptor_file: str = Field(min_length=1)
    """The file with the compiled descriptors."""

    message: str = Field(min_length=1)
    """The full name of the message type."""


@declare(Kind.CODEC, "string", "Text.", available=True)
class StringOptions(Options):
    encoding: Literal["utf-8", "latin-1", "ascii"] = "utf-8"
    """How the text is encoded."""


@declare(Kind.CODEC, "binary", "Bytes stay bytes.", available=True)
class BinaryOptions(NoOptions):
    pass


@declare(Kind.CODEC, "influx", "InfluxDB's line protocol.")
class InfluxOptions(Options):
    precision: Literal["ns", "us", "ms", "s"] = "ns"
    """The unit of the time stamps."""


@declare(Kind.CODEC, "statsd", "StatsD metrics.")
class StatsdOptions(NoOptions):
    pass


@declare(Kind.CODEC, "dogstatsd", "DogStatsD metrics, events and checks.")
class DogstatsdOptions(NoOptions):
    pass


@declare(Kind.CODEC, "syslog", "Syslog messages.")
class SyslogOptions(Options):
    format: Literal["auto", "rfc3164", "rfc5424"] = "auto"
    """Which of the two standards; `auto` tells them apart."""


@declare(Kind.CODEC, "graphite", "Graphite's plain text metrics.")
class GraphiteOptions(NoOptions):
    pass


@declare(Kind.CODEC, "yaml", "YAML, one document a payload.")
class YamlOptions(NoOptions):
    pass


@declare(Kind.CODEC, "cloudevents", "CloudEvents 1.0, structured.")
class CloudeventsOptions(NoOptions):
    pass
