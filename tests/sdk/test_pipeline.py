"""Flows built in Python are the flows that files give."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.config import FlowFileError, load
from penstock.config.flow import Edge
from penstock.config.guarantees import path_guarantees
from penstock.errors import ConfigError
from penstock.flow.components import registry
from penstock.sdk import SinkExtensionConfig, SourceExtensionConfig, SourceStream, component
from tests.engine.flows import STARTS_S
from tests.supervisor.running import clean_environment, eventually
from tools.services import free_port

EXAMPLE = Path(__file__).parents[2] / "examples" / "extensions" / "text_stream.py"


class Orders(SourceStream):
    def source(self) -> SourceExtensionConfig:
        return SourceExtensionConfig(name="orders", port=7100, cookie="${file:cookie}")


def clean(frame: Any) -> Any:
    return frame


SINK = SinkExtensionConfig(name="out", port=7200)
FILE = """
name: shop
guarantee: exactly_once
system: {maxprocs: 2}
components:
  orders:
    module: receiver.connector
    params: {bind: "127.0.0.1:7100", version: v0.0.1, cookie: "${file:cookie}"}
  filter: {module: link.filter, params: {condition: "length(payload) > 0"}}
  clean: {module: link.python, params: {function: "tests.sdk.test_pipeline:clean", mode: arrow}}
  out: {module: sink.connector, params: {address: "127.0.0.1:7200", version: v0.0.1}}
pipeline:
  orders: {connect: filter}
  filter: {connect: clean}
  clean: {connect: out}
"""


def test_a_pipeline_is_the_flow_of_the_file_that_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "cookie").write_text("tacos")
    path = tmp_path / "shop.yaml"
    path.write_text(FILE)
    pipeline = (
        penstock.pipeline("shop", Orders(), folder=tmp_path)
        .to(component("link.filter", condition="length(payload) > 0"))
        .to(clean, mode="arrow")
        .to_sink(SINK)
        .settings(maxprocs=2)
        .options(guarantee="exactly_once")
    )
    expected = load(path, registry=registry())
    built = pipeline.flow()
    saved = load(pipeline.save(tmp_path / "saved.yaml"), registry=registry())
    for found in (built, saved):
        assert found.components == expected.components
        assert found.edges == expected.edges
        assert (found.name, found.system, found.guarantee) == (
            expected.name,
            expected.system,
            expected.guarantee,
        )
    assert built.file == path
    assert built.data_dir == expected.data_dir
    paths = path_guarantees(built.components, built.edges)
    assert [(one.source, one.sink) for one in paths] == [("orders", "out")]
    assert pipeline.explain().flow == "shop"
    assert (tmp_path / "saved.yaml").stat().st_mode & 0o077 == 0


def test_copies_routes_and_names() -> None:
    http = component("receiver.http", name="web", bind=":7071", codec="json")
    out = component("sink.dumper", out="STDOUT")
    copied = penstock.pipeline("copies", http).to_sinks(out, out).flow()
    assert copied.edges == (Edge("web", "dumper"), Edge("web", "dumper_2"))
    routed = penstock.pipeline("routes", http).to_routes("dest", {"a": out, "b": out}, SINK).flow()
    assert routed.edges[1:] == (
        Edge("router", "dumper", "a"),
        Edge("router", "dumper_2", "b"),
        Edge("router", "out", "default"),
    )


def test_mistakes_are_those_of_a_file_or_say_what_to_do() -> None:
    begun = penstock.pipeline("wrong", Orders())
    with pytest.raises(ConfigError, match="define it in a module, by name"):
        begun.to(lambda frame: frame)
    with pytest.raises(ConfigError, match="int is no sink"):
        begun.to_sink(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="clean leads nowhere; end with to_sink"):
        begun.to(clean).document()
    with pytest.raises(ConfigError, match="nothing can follow a sink"):
        begun.to_sink(SINK).to(clean)
    misspelt = penstock.pipeline("wrong", component("receiver.htpp", bind=":1")).to_sink(SINK)
    with pytest.raises(FlowFileError, match=r"receiver\.http"):
        misspelt.flow()


class Program:
    def __init__(self, folder: Path, port: int, *arguments: str) -> None:
        with open(folder / "stderr", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(EXAMPLE), *arguments],
                cwd=folder,
                env=clean_environment(TEXT_PORT=str(port), PENSTOCK_DATA_DIR=str(folder / "data")),
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@pytest.mark.slow
@pytest.mark.timeout(STARTS_S + 200)
def test_the_text_stream_brings_every_line_through_a_flow_once(tmp_path: Path) -> None:
    """Both halves of both descriptions. A second sender goes on after what the first one sent; the receiver is
    killed (SIGKILL) once it has read two lines, and the one after it gets the third and nothing else."""
    port = free_port()
    text = tmp_path / "some.txt"
    text.write_text("one\ntwo\n")
    receiver = Program(tmp_path, port, "receive")
    flow = Program(tmp_path, port, "run")
    programs = [receiver, flow]
    try:
        ready = flow.line()
        assert ready.startswith("ready"), (tmp_path / "stderr").read_text()
        assert Program(tmp_path, port, "send", str(text)).line() == "2 lines sent"
        came_out = [receiver.line(), receiver.line()]
        # A line is read when the next one is asked for; the last of a round then goes with its file.
        inbox = tmp_path / "received" / "inbox"
        eventually(lambda: not list(inbox.glob("0*")), "the second line is read")
        receiver.kill()
        with open(text, "a") as file:
            file.write("three\n")
        assert Program(tmp_path, port, "send", str(text)).line() == "1 lines sent"
        again = Program(tmp_path, port, "receive")
        programs.append(again)
        came_out.append(again.line())
        flow.process.send_signal(signal.SIGTERM)
        assert flow.process.wait(60) == 0
        again.kill()
        assert again.process.stdout is not None
        came_out += again.process.stdout.read().split()
        assert came_out == ["ONE", "TWO", "THREE"]
    finally:
        for program in programs:
            program.kill()
