"""From a component of a flow to the sink that does its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, cast, get_args
from urllib.parse import urlsplit

from penstock.config.address import Address
from penstock.config.flow import Component
from penstock.errors import ConfigError
from penstock.peers.connector import ConnectorSinkOptions
from penstock.peers.file import DumperSinkOptions, FileSinkOptions
from penstock.peers.http import HttpSinkOptions
from penstock.peers.tcp import TcpSinkOptions
from penstock.peers.topic import TopicSinkOptions
from penstock.peers.udp import UdpSinkOptions
from penstock.peers.unix import UnixSinkOptions
from penstock.sinks.connections import Target
from penstock.sinks.connector import ConnectorSink
from penstock.sinks.datagram import DatagramSink
from penstock.sinks.dumper import DumperSink, StandardSink, Stream
from penstock.sinks.file import FileSink
from penstock.sinks.framing import Framing
from penstock.sinks.http import HttpSink
from penstock.sinks.interface import Sink
from penstock.sinks.stream import StreamSink
from penstock.sinks.topic import TopicSink
from penstock.version import __version__


def make_sink(component: Component, data_dir: Path) -> Sink:
    """The sink of a flow's component. Nothing is opened yet; paths are settled now, since the tasks
    may run elsewhere."""
    make = _MAKERS.get(component.module)
    if make is None:
        raise ConfigError(f"{component.name}: {component.module} is not there yet in this version")
    return make(component, data_dir)


def cut_sink(name: str, topic: str, data_dir: Path) -> Sink:
    """Where a piece of a flow hands over to the next one."""
    return TopicSink(name, topic, data_dir, keeps_origin=True, under_way=True)


def park_sink(name: str, topic: str, data_dir: Path, since_us: int | None = None) -> Sink:
    """Stands in for the sink `name` while that is held back; for one transaction, if it notes the time."""
    return TopicSink(
        name, topic, data_dir, keeps_origin=True, parks=True, under_way=True, since_us=since_us
    )


def _topic(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, TopicSinkOptions)
    return TopicSink(component.name, options.topic, data_dir, options.partition_by)


def _file(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, FileSinkOptions)
    return FileSink(
        component.name,
        Path(options.path).absolute(),
        options.format,
        options.rotate_bytes,
        Framing.of(component.interceptors, framed=False),
    )


def _dumper(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, DumperSinkOptions)
    framing = Framing.of(component.interceptors, framed=False)
    if options.out in get_args(Stream):
        stream = cast("Stream", options.out)
        return StandardSink(component.name, stream, staging_root(data_dir), framing)
    return DumperSink(component.name, Path(options.out).absolute(), framing)


def staging_root(data_dir: Path) -> Path:
    """Where sinks stage what does not lie in files of its own."""
    return data_dir.absolute() / "staging"


def _tcp(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, TcpSinkOptions)
    target = Target(component.name, options.address, options.timeout_s, options.tls)
    return StreamSink(target, Framing.of(component.interceptors, framed=False), options.reply)


def _udp(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, UdpSinkOptions)
    target = Target(component.name, options.address, options.timeout_s)
    return DatagramSink(target, Framing.of(component.interceptors, framed=True))


def _unix(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, UnixSinkOptions)
    target = Target(component.name, str(Path(options.path).absolute()), options.timeout_s)
    if options.mode == "datagram":
        return DatagramSink(target, Framing.of(component.interceptors, framed=True))
    return StreamSink(target, Framing.of(component.interceptors, framed=False), options.reply)


def _http(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, HttpSinkOptions)
    url = urlsplit(options.url)
    secure = url.scheme == "https"
    port = url.port or (443 if secure else 80)
    tls = options.tls if secure else None
    return HttpSink(
        Target(component.name, Address(url.hostname or "", port), options.timeout_s, tls),
        (url.path or "/") + (f"?{url.query}" if url.query else ""),
        options.method,
        http_headers(url.netloc, options, component.codec.name if component.codec else ""),
        Framing.of(component.interceptors, framed=True),
        options.batch,
        options.connections,
    )


def _connector(component: Component, data_dir: Path) -> Sink:
    options = component.options
    assert isinstance(options, ConnectorSinkOptions)
    return ConnectorSink(
        Target(component.name, options.address, options.connect_timeout_s, options.tls),
        data_dir.absolute(),
        options.version,
        options.cookie.get_secret_value(),
        options.vote_timeout_s,
        options.timeout_s,
        options.workers,
        Framing.of(component.interceptors, framed=True),
    )


def http_headers(host: str, options: HttpSinkOptions, codec: str) -> tuple[tuple[str, str], ...]:
    """Those of the configuration, and those that every request needs."""
    kind = "application/x-ndjson" if options.batch else _CONTENT_TYPES.get(codec, _BYTES)
    given = {name: value.get_secret_value() for name, value in options.headers.items()}
    usual = {"Host": host, "User-Agent": f"penstock/{__version__}", "Content-Type": kind}
    written = {name.lower() for name in given}
    kept = {name: value for name, value in usual.items() if name.lower() not in written}
    return (*kept.items(), *given.items())


_BYTES: Final = "application/octet-stream"
_CONTENT_TYPES: Final = {
    "cloudevents": "application/cloudevents+json",
    "csv": "text/csv",
    "json": "application/json",
    "msgpack": "application/msgpack",
    "string": "text/plain; charset=utf-8",
}

_MAKERS: Final[dict[str, Callable[[Component, Path], Sink]]] = {
    "sink.connector": _connector,
    "sink.dumper": _dumper,
    "sink.file": _file,
    "sink.http": _http,
    "sink.tcp": _tcp,
    "sink.udp": _udp,
    "sink.unix": _unix,
    "sink.topic": _topic,
}
