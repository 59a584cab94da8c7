"""From a component of a flow to the sink that does its work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, cast, get_args

from penstock.config.flow import Component
from penstock.errors import ConfigError
from penstock.peers.file import DumperSinkOptions, FileSinkOptions
from penstock.peers.tcp import TcpSinkOptions
from penstock.peers.udp import UdpSinkOptions
from penstock.peers.unix import UnixSinkOptions
from penstock.sinks.connections import Target
from penstock.sinks.datagram import DatagramSink
from penstock.sinks.dumper import DumperSink, StandardSink, Stream
from penstock.sinks.file import FileSink
from penstock.sinks.framing import Framing
from penstock.sinks.interface import Sink
from penstock.sinks.stream import StreamSink


def make_sink(component: Component, data_dir: Path) -> Sink:
    """The sink of a flow's component. Nothing is opened yet; paths are settled now, since the tasks
    may run elsewhere."""
    make = _MAKERS.get(component.module)
    if make is None:
        raise ConfigError(f"{component.name}: {component.module} is not there yet in this version")
    return make(component, data_dir)


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


_MAKERS: Final[dict[str, Callable[[Component, Path], Sink]]] = {
    "sink.dumper": _dumper,
    "sink.file": _file,
    "sink.tcp": _tcp,
    "sink.udp": _udp,
    "sink.unix": _unix,
}
