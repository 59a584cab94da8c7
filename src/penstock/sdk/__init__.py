"""For programs that feed Penstock or receive from it, and for flows built in Python.

    messages.py   decorators for encoders and decoders      config.py   both ends of a stream, described once
    sink.py       what a flow sends, to be read             two_phase.py   a sink that prepares and commits
    source.py     a program that sends; aio.py for asyncio  ahead.py    reads beside an event loop
    sender.py     keeps a source connected                  wire.py     one of its connections
    outbox.py     what is not yet acknowledged              packs.py    many frames at once
    sources.py    files that can be read again              streams.py  both halves of a stream in one class
    pipeline.py   flows built in Python

Importing this package loads neither Spark nor Java nor Arrow: each name is loaded when it is first used. So
an extension can run where nothing of Spark is installed, and starts quickly.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.sdk.config import SinkExtensionConfig, SourceExtensionConfig
    from penstock.sdk.messages import Outgoing, message_decoder, message_encoder
    from penstock.sdk.pipeline import Pipeline, component
    from penstock.sdk.rounds import Round, Transaction
    from penstock.sdk.sink import SinkExtension
    from penstock.sdk.sink_faults import Fault
    from penstock.sdk.source import SourceExtension
    from penstock.sdk.sources import FramedFileSource, LineFileSource, ReplayableSource, Throttled
    from penstock.sdk.streams import SinkStream, SourceStream
    from penstock.sdk.two_phase import TwoPhaseSink

_MODULE_OF = {
    "Fault": "sink_faults",
    "FramedFileSource": "sources",
    "LineFileSource": "sources",
    "Outgoing": "messages",
    "Pipeline": "pipeline",
    "ReplayableSource": "sources",
    "Round": "rounds",
    "SinkExtension": "sink",
    "SinkExtensionConfig": "config",
    "SinkStream": "streams",
    "SourceExtension": "source",
    "SourceExtensionConfig": "config",
    "SourceStream": "streams",
    "Throttled": "sources",
    "Transaction": "rounds",
    "TwoPhaseSink": "two_phase",
    "component": "pipeline",
    "message_decoder": "messages",
    "message_encoder": "messages",
}

__all__ = [
    "Fault",
    "FramedFileSource",
    "LineFileSource",
    "Outgoing",
    "Pipeline",
    "ReplayableSource",
    "Round",
    "SinkExtension",
    "SinkExtensionConfig",
    "SinkStream",
    "SourceExtension",
    "SourceExtensionConfig",
    "SourceStream",
    "Throttled",
    "Transaction",
    "TwoPhaseSink",
    "component",
    "message_decoder",
    "message_encoder",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"penstock.sdk has no {name!r}")
    found = getattr(importlib.import_module(f"penstock.sdk.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
