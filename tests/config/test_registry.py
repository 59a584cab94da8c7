"""Components declare themselves once, ours and those of plugins alike."""

from __future__ import annotations

import pytest

from penstock.config import inspect_bytes
from penstock.config.options import Options
from penstock.config.registry import Kind, Registry, Shape, module_spellings
from penstock.errors import ConfigError
from penstock.flow.components import registry


def test_a_third_party_component_is_read_and_checked_like_ours():
    known = Registry()

    @known.declare(Kind.RECEIVER, "sensor", "Reads a sensor.", available=True)
    class SensorOptions(Options):
        pin: int
        """Which pin."""

    @known.declare(Kind.SINK, "lamp", "Switches a lamp.", aliases=("light",))
    class LampOptions(Options):
        pass

    text = (
        b"components: {s: {module: receiver.sensor, params: {pin: x}}, l: {module: sink.light}}\n"
    )
    text += b"pipeline: {s: {connect: l}}\n"
    [problem] = inspect_bytes(text, "a.yaml", registry=known, environment={}).problems
    assert problem.message == "receiver.sensor: `pin`: expected a whole number, found `x`"
    good = inspect_bytes(text.replace(b"x}", b"4}"), "a.yaml", registry=known, environment={})
    assert good.flow is not None
    assert good.flow.components["s"].options == SensorOptions(pin=4)
    assert good.flow.components["l"].module == "sink.lamp"


def test_a_name_cannot_be_declared_twice():
    known = Registry()
    known.declare(Kind.LINK, "a", "One.", aliases=("b",))(Options)
    with pytest.raises(ConfigError, match="declared twice"):
        known.declare(Kind.LINK, "b", "Two.")(Options)
    known.declare(Kind.SINK, "a", "Another kind.")(Options)


def test_every_spelling_finds_its_module():
    known = registry()
    for one in known:
        if one.kind.is_module:
            for spelling in module_spellings(one):
                assert known.find_module(spelling) is one


@pytest.mark.parametrize(
    "module", ["", ".", "receiver", "receiver.", "buffer", "core.", "core", "link.x.y"]
)
def test_what_is_no_module_is_not_found(module):
    assert registry().find_module(module) is None


def test_every_option_says_what_it_means():
    silent = [
        f"{one.module}: {name}"
        for one in registry()
        for name, info in one.options.model_fields.items()
        if not info.description
    ]
    assert silent == []


def test_shapes_follow_the_table_of_links():
    shapes = {one.name: one.shape for one in registry().of_kind(Kind.LINK)}
    assert shapes["router"] == Shape(max_outputs=None, routed=True)
    assert (shapes["multiplexer"].min_outputs, shapes["multiplexer"].max_outputs) == (0, None)
    assert (shapes["fanout"].min_outputs, shapes["fanout"].max_outputs) == (1, None)
    assert (shapes["buffer"].min_outputs, shapes["buffer"].max_outputs) == (1, 1)
