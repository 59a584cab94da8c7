"""A flow survives the way to the engine's process, secrets included."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config import load
from penstock.flow.components import registry
from penstock.flow.wire import dump_flow, load_flow

EXAMPLES = sorted(
    path
    for path in Path(__file__).parents[2].glob("examples/*.yaml")
    if not path.name.endswith(".test.yaml")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_comes_back_the_same(path: Path) -> None:
    flow = load(path, registry=registry())
    again = load_flow(json.loads(json.dumps(dump_flow(flow))))
    assert again.components == flow.components
    assert again.edges == flow.edges
    assert again.system == flow.system
    assert (again.name, again.dead_letter, again.commit) == (
        flow.name,
        flow.dead_letter,
        flow.commit,
    )
