"""A flow built in Python: the same components, the same checks and the same `Flow` as a file gives.

    flow = (
        penstock.pipeline("orders", component("receiver.http", bind=":7071", codec="json"))
        .to(component("link.filter", condition="amount > 0"))
        .to(clean)
        .to_sink(component("sink.file", path="orders", format="parquet"))
    )
    flow.run()

What is built is a flow file's content (`document`), read by the reader of flow files: nothing can be built that a file
could not say, and mistakes are reported the same way. `save` writes it, for the commands.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from penstock.errors import ConfigError
from penstock.sdk.config import SinkExtensionConfig, SourceExtensionConfig
from penstock.sdk.streams import SinkStream, SourceStream

if TYPE_CHECKING:
    from penstock.config import Flow
    from penstock.flow.explaining import Explanation

Mode = Literal["dataframe", "arrow"]
Function: TypeAlias = Callable[[Any], Any]

_BESIDE_PARAMS = ("codec", "interceptors", "topic")


@dataclass(frozen=True, slots=True)
class Component:
    """What stands under `components:`. `name` is None until the pipeline gives it one."""

    entry: dict[str, Any] = field(repr=False)
    name: str | None = None


def component(module: str, /, *, name: str | None = None, **options: Any) -> Component:
    """Any component there is, with its options as in a flow file (`penstock list` shows them)."""
    entry: dict[str, Any] = {"module": module}
    entry |= {key: options.pop(key) for key in _BESIDE_PARAMS if key in options}
    if options:
        entry["params"] = options
    return Component(entry, name)


Source: TypeAlias = Component | SourceExtensionConfig | SourceStream
Sink: TypeAlias = Component | SinkExtensionConfig | SinkStream


class Pipeline:
    """A flow under construction. Every method gives back the pipeline itself."""

    def __init__(self, name: str, source: Source, *, folder: Path | str | None = None) -> None:
        """`folder` is where a flow file would be: data live in `.penstock` there, and modules with functions
        are looked for there. Default: that of the program, or the working directory."""
        self._name = name
        self._folder = Path(folder) if folder is not None else _program_folder()
        self._components: dict[str, dict[str, Any]] = {}
        self._wires: dict[str, dict[str, Any]] = {}
        self._system: dict[str, Any] = {}
        self._more: dict[str, Any] = {}
        self._open: list[str] = [self._add(_component(source, SourceStream, "source"))]

    def to(self, step: Component | Function, *, mode: Mode = "dataframe") -> Self:
        """Through a link, or a function: DataFrame to DataFrame, or Arrow batch to Arrow batch.

        Functions run in other processes: they must be importable from there, by module and name.
        """
        if not isinstance(step, Component):
            params = {"function": _reference(step), "mode": mode}
            step = Component({"module": "link.python", "params": params}, step.__name__)
        return self._connect(step)

    def to_sink(self, sink: Sink) -> Self:
        """Into a sink. The pipeline ends there."""
        return self._connect(_component(sink, SinkStream, "sink"), ends=True)

    def to_sinks(self, *sinks: Sink) -> Self:
        """A copy into each of several sinks."""
        names = [self._add(_component(sink, SinkStream, "sink")) for sink in sinks]
        self._wire({"links": names})
        self._open = []
        return self

    def to_routes(
        self, routing_key: str, routes: Mapping[str, Sink], default: Sink | None = None
    ) -> Self:
        """Into the sink whose route is the value of a meta attribute."""
        self.to(component("link.router", routing_key=routing_key))
        every = dict(routes) | ({} if default is None else {"default": default})
        names = {
            route: self._add(_component(sink, SinkStream, "sink")) for route, sink in every.items()
        }
        self._wire({"routes": names})
        self._open = []
        return self

    def settings(self, **system: Any) -> Self:
        """What a file says under `system:`."""
        self._system |= system
        return self

    def options(self, **more: Any) -> Self:
        """What a file says of the flow as a whole: `guarantee`, `commit`, `dead_letter`, `topics`."""
        self._more |= more
        return self

    # --- What came of it ------------------------------------------------------------------------

    def document(self) -> dict[str, Any]:
        """The flow file's content. Cookies are in it."""
        if self._open and self._wires:
            raise ConfigError(f"{self._name}: {self._open[0]} leads nowhere; end with to_sink")
        found: dict[str, Any] = {"name": self._name, **self._more}
        if self._system:
            found["system"] = self._system
        return found | {"components": self._components, "pipeline": self._wires}

    def save(self, path: Path | str) -> Path:
        """Write the flow file, readable for nobody else, since it may hold a cookie."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(self._text())
        return Path(path)

    def flow(self, **overrides: str) -> Flow:
        """The flow, checked. FlowFileError with every mistake if there is one; lines are those of `save`."""
        from penstock.config import FlowFileError, inspect_bytes
        from penstock.flow.components import registry

        place = self._folder / f"{self._name}.yaml"
        loaded = inspect_bytes(self._text(), place, registry=registry(), overrides=overrides)
        if loaded.flow is None:
            raise FlowFileError(loaded.problems, loaded.source)
        return loaded.flow

    def explain(self) -> Explanation:
        """Which queries the flow becomes; `penstock explain` shows the same."""
        from penstock.flow.explaining import explain

        return explain(self.flow())

    def run(self, *, once: bool = False, accept_loss: bool = False, **overrides: str) -> bool:
        """Run the flow until a signal comes, as `penstock run` does; from the program's main thread.

        Whether it ended cleanly. `overrides` are settings: `data_dir`, `maxprocs`. A program that calls this
        must be importable without doing so (`if __name__ == "__main__":`) if its functions are used.
        """
        from penstock import logs
        from penstock.admin.server import AdminServer
        from penstock.supervisor.child import own_stdout
        from penstock.supervisor.once import run_once
        from penstock.supervisor.planning import runnable
        from penstock.supervisor.program import Supervisor

        flow = self.flow(**overrides)
        parts = runnable(flow)
        logs.configure(flow.system.log_level, flow.system.log_format, process="supervisor")
        # The other processes look for the functions' modules where this one found them.
        path = [str(self._folder.absolute()), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, path))

        async def supervise() -> bool:
            if once:
                return await run_once(flow, parts, accept_loss=accept_loss, stdout=own_stdout())
            supervisor = Supervisor(
                flow,
                parts,
                open_admin=AdminServer,
                announce=_announce,
                accept_loss=accept_loss,
                stdout=own_stdout(),
            )
            return await supervisor.run()

        return asyncio.run(supervise())

    # --- Building -------------------------------------------------------------------------------

    def _text(self) -> bytes:
        import yaml

        text: str = yaml.safe_dump(self.document(), sort_keys=False, allow_unicode=True)
        return text.encode()

    def _connect(self, step: Component, *, ends: bool = False) -> Self:
        name = self._add(step)
        self._wire({"connect": name})
        self._open = [] if ends else [name]
        return self

    def _wire(self, wires: dict[str, Any]) -> None:
        if not self._open:
            raise ConfigError(f"{self._name}: nothing can follow a sink")
        self._wires[self._open[0]] = wires

    def _add(self, one: Component) -> str:
        wanted = one.name or one.entry["module"].rpartition(".")[2]
        name, number = wanted, 2
        while name in self._components:
            name, number = f"{wanted}_{number}", number + 1
        self._components[name] = one.entry
        return name


def pipeline(name: str, source: Source, *, folder: Path | str | None = None) -> Pipeline:
    """Begin a flow: `penstock.pipeline("orders", source).to(function).to_sink(sink)`."""
    return Pipeline(name, source, folder=folder)


def _component(one: Any, stream: type, half: str) -> Component:
    if isinstance(one, stream):
        one = getattr(one, half)()
    if isinstance(one, SourceExtensionConfig | SinkExtensionConfig):
        return Component(one.component(), one.name)
    if isinstance(one, Component):
        return one
    raise ConfigError(
        f"{type(one).__name__} is no {half}: give component(...), a config, or a stream description"
    )


def _reference(function: Function) -> str:
    """`module:name`, as other processes find it."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "<lambda>")
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = None if file is None else Path(file).stem
    if module is None or "<" in name:
        raise ConfigError(
            f"{name}: a function of a pipeline runs in other processes: define it in a module, by name, so that "
            "they can import it"
        )
    return f"{module}:{name}"


def _program_folder() -> Path:
    file = getattr(sys.modules["__main__"], "__file__", None)
    return Path.cwd() if file is None else Path(file).absolute().parent


def _announce(text: str) -> None:
    print(text, flush=True)
