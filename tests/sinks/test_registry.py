"""Sinks are made from the components of a flow, and promise what the flow was told they would."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock.config.problems import FlowFileError
from penstock.errors import ConfigError
from penstock.sinks.registry import make_sink

from .components import component_of, sink_of

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("file", {"path": "out"}),
    ("file", {"path": "out", "format": "parquet", "rotate_bytes": "1MiB"}),
    ("dumper", {"out": "STDOUT"}),
    ("dumper", {"out": "STDERR"}),
    ("dumper", {"out": "all.log"}),
    ("tcp", {"address": "127.0.0.1:1"}),
    ("tcp", {"address": "127.0.0.1:1", "reply": "status", "tls": {"min_version": "1.3"}}),
    ("udp", {"address": "[::1]:1"}),
    ("unix", {"path": "s"}),
    ("unix", {"path": "s", "reply": "status"}),
    ("unix", {"path": "s", "mode": "datagram"}),
    ("http", {"url": "https://[::1]/a?b=c", "headers": {"authorization": "Bearer x"}}),
]


@pytest.mark.parametrize(("kind", "params"), KINDS)
def test_a_sink_promises_what_its_options_promise(kind: str, params: dict[str, Any]) -> None:
    component = component_of(kind, params)
    assert component.available
    sink = make_sink(component, Path("data"))
    assert sink.name == "out"
    assert sink.guarantee is component.options.promise()[0]
    assert pickle.loads(pickle.dumps(sink)) == sink


def test_paths_are_settled_where_the_flow_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink: Any = sink_of("file", {"path": "out"})
    dumper: Any = sink_of("dumper", {"out": "all.log"})
    monkeypatch.chdir("/")
    assert sink.directory == tmp_path / "out"
    assert dumper.path == tmp_path / "all.log"


def test_interceptors_reach_the_sink() -> None:
    tcp: Any = sink_of("tcp", {"address": ":1"})
    assert [name for name, _ in tcp.framing.specs] == ["lines"]
    tcp = sink_of(
        "tcp", {"address": ":1"}, interceptors=[{"separate": {"delimiter": "|"}}, "base64"]
    )
    assert [name for name, _ in tcp.framing.specs] == ["separate", "base64"]
    assert tcp.framing.specs[0][1]["delimiter"] == "|"


def test_what_is_not_there_yet_is_said() -> None:
    with pytest.raises(ConfigError, match=r"out: sink\.ws is not there yet"):
        sink_of("ws", {"url": "ws://127.0.0.1:1"})


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"url": "http://"}, "expected a URL"),
        ({"url": "http://a b/"}, "no spaces"),
        ({"url": "http://user:secret@host/"}, "put credentials into `headers`"),
        ({"url": "http://host:99999/"}, "expected a URL"),
        ({"url": "http://host/", "headers": {"a b": "c"}}, "no header name"),
        ({"url": "http://host/", "headers": {"x": "a\r\nb: c"}}, "no header can have"),
        ({"url": "http://host/", "headers": {"Content-Length": "3"}}, "set by Penstock itself"),
    ],
)
def test_a_request_that_could_not_be_sent_is_a_mistake_in_the_file(
    params: dict[str, Any], problem: str
) -> None:
    with pytest.raises(FlowFileError, match=problem):
        component_of("http", params)


def test_nobody_answers_a_datagram() -> None:
    with pytest.raises(FlowFileError, match="nobody answers a datagram"):
        component_of("unix", {"path": "s", "mode": "datagram", "reply": "status"})
