"""The flow file: typed models, lint with places, settings, schema.

`load` is the way in: it gives a `Flow`, or raises `FlowFileError` with every mistake in the file.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.config.flow import Component, Edge, Flow, Missing, Stage
    from penstock.config.loading import Loaded, inspect, inspect_bytes, load
    from penstock.config.problems import FlowFileError, Problem

__all__ = [
    "Component",
    "Edge",
    "Flow",
    "FlowFileError",
    "Loaded",
    "Missing",
    "Problem",
    "Stage",
    "inspect",
    "inspect_bytes",
    "load",
]

_HOME = {
    **dict.fromkeys(("Component", "Edge", "Flow", "Missing", "Stage"), "flow"),
    **dict.fromkeys(("Loaded", "inspect", "inspect_bytes", "load"), "loading"),
    **dict.fromkeys(("FlowFileError", "Problem"), "problems"),
}


def __getattr__(name: str) -> Any:
    """When asked for: Spark starts Python processes that need an address or a suggestion from here, many
    of them for one small batch, and the models take longer to import than all else that they need."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
