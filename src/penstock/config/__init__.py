"""The flow file: typed models, lint with places, settings, schema.

`load` is the way in: it gives a `Flow`, or raises `FlowFileError` with every mistake in the file.
"""

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
