"""Both ends of a stream, described once: the component of the flow, and the program outside.

`component()` is what the flow file would hold under `components:`; the extension takes address, cookie
and version from the same object, so that the two cannot disagree.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from penstock.errors import ConfigError
from penstock.sdk.messages import Decoder, Encoder

VERSION = "v0.0.1"
"""What most programs in the field say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtensionConfig:
    """What sources and sinks have in common."""

    name: str
    """Of the component in the flow, and of the program in its HELLO."""

    host: str = "127.0.0.1"
    port: int
    version: str = VERSION
    cookie: str = field(default="", repr=False)
    codec: str | None = None
    """How the flow reads or writes payloads, as in the flow file. Default: bytes stay bytes."""

    options: dict[str, Any] = field(default_factory=dict)
    """More options of the component, as in the flow file: `credits`, `tls`, `vote_timeout_s`."""

    tls: ssl.SSLContext | None = None
    """Of the program. The component's own TLS is in `options`."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError(f"{self.name}: {self.port} is no port; one is between 0 and 65535")

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _component(self, module: str, place: str) -> dict[str, Any]:
        params: dict[str, Any] = {place: self.address, "version": self.version}
        if self.cookie:
            params["cookie"] = self.cookie
        found: dict[str, Any] = {"module": module, "params": params | self.options}
        if self.codec is not None:
            found["codec"] = self.codec
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExtensionConfig(ExtensionConfig):
    """A program that sends: the flow has `receiver.connector` at this address."""

    encoder: Encoder | None = None
    """From the program's values to payloads. Default: they are bytes already."""

    def component(self) -> dict[str, Any]:
        return self._component("receiver.connector", "bind")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkExtensionConfig(ExtensionConfig):
    """A program that receives: the flow has `sink.connector`, which connects to this address."""

    decoder: Decoder | None = None
    """From payloads to the program's values. Default: they stay bytes."""

    def component(self) -> dict[str, Any]:
        return self._component("sink.connector", "address")
