"""Sinks from configuration, as a flow would make them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from penstock.config import load
from penstock.config.flow import Component
from penstock.flow.components import registry
from penstock.sinks.interface import Sink
from penstock.sinks.registry import make_sink


def component_of(kind: str, params: dict[str, Any], **more: Any) -> Component:
    flow = {
        "components": {
            "web": {"module": "receiver.http", "params": {"bind": ":1"}},
            "out": {"module": f"sink.{kind}", "params": params, **more},
        },
        "pipeline": {"web": {"connect": "out"}},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.yaml"
        path.write_text(yaml.safe_dump(flow))
        return load(path, registry=registry(), environment={}).components["out"]


def sink_of(kind: str, params: dict[str, Any], data_dir: Path = Path("."), **more: Any) -> Sink:
    return make_sink(component_of(kind, params, **more), data_dir)
