"""Stream descriptions: both halves of one stream in one class, so that they cannot disagree.

    class Orders(SourceStream):
        def source(self) -> SourceExtensionConfig:
            return SourceExtensionConfig(name="orders", port=7100, codec="json", encoder=encode)

`Orders().source()` stands in the flow; `Orders().extension()` runs in the program that feeds it. Put the class where both
can import it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.sdk.config import SinkExtensionConfig, SourceExtensionConfig

if TYPE_CHECKING:
    from penstock.sdk.sink import SinkExtension
    from penstock.sdk.source import SourceExtension


class SourceStream(ABC):
    """A stream into a flow."""

    @abstractmethod
    def source(self) -> SourceExtensionConfig:
        """The flow's half: `receiver.connector`."""

    def extension(self) -> SourceExtension:
        """The program's half; `connect()` knows where to."""
        from penstock.sdk.source import SourceExtension

        return SourceExtension.of(self.source())


class SinkStream(ABC):
    """A stream out of a flow."""

    @abstractmethod
    def sink(self) -> SinkExtensionConfig:
        """The flow's half: `sink.connector`."""

    def extension(self, folder: Path | str | None = None) -> SinkExtension:
        """The program's half; `listen()` knows where. `folder` keeps what is not yet read."""
        from penstock.sdk.sink import SinkExtension

        return SinkExtension.of(self.sink(), folder=folder)
