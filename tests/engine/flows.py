"""A flow on Spark as a real process, and what its sinks hold afterwards."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.flow.receipts import Receipts
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from penstock.status import Status
from penstock.testing import read_topic
from tests.supervisor.running import Run, request

STARTS_S = 240.0
"""Spark takes seconds to start on an idle machine; tests run on busy ones."""

THREE_SINKS = """
name: drill
system: {admin: {bind: "127.0.0.1:0"}, stop_timeout_s: 60}
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}
  copy: {module: link.multiplexer}
  by_dest: {module: link.router, params: {routing_key: dest}}
  lines: {module: sink.dumper, params: {out: "FOLDER/lines"}}
  files: {module: sink.file, params: {path: "FOLDER/files", format: jsonl}}
  again: {module: sink.topic, params: {topic: drill.again}}
pipeline:
  web: {connect: by_dest}
  by_dest: {routes: {all: copy, one: lines}}
  copy: {links: [lines, files, again]}
"""


def write_flow(folder: Path, text: str = THREE_SINKS) -> Path:
    path = folder / "drill.yaml"
    path.write_text(text.replace("FOLDER", str(folder)))
    return path


def send(run: Run, stream: str, seq: int, dest: str = "all", **query: str) -> tuple[int, object]:
    """A numbered message: sending it twice is sending it once."""
    headers = {"Penstock-Stream": stream, "Penstock-Sequence": str(seq)}
    asked = "&".join(f"{name}={value}" for name, value in {"dest": dest, **query}.items())
    body = f"{stream} {seq}".encode()
    return request(run.addresses["web"], "POST", f"/?{asked}", body, headers)


def in_lines(folder: Path) -> list[str]:
    path = folder / "lines"
    return path.read_text().splitlines() if path.exists() else []


def in_files(folder: Path) -> list[str]:
    found = sorted(path for path in (folder / "files").glob("*.jsonl"))
    return [json.loads(line)["payload"] for path in found for line in path.read_text().splitlines()]


def in_topic(data_dir: Path, topic: str) -> list[str]:
    return [one.payload.decode() for one in read_topic(data_dir, topic)]


def once_and_in_order(
    found: list[str], expected: dict[str, int], wanted: Callable[[int], bool] = lambda seq: True
) -> None:
    """Every wanted message of every stream, 0 to its count, exactly once, in order within its stream."""
    streams: dict[str, list[int]] = {}
    for text in found:
        stream, _, seq = text.partition(" ")
        streams.setdefault(stream, []).append(int(seq))
    repeats = [text for text, count in Counter(found).items() if count > 1]
    assert not repeats, f"more than once: {repeats[:5]}"
    complete = {stream: list(filter(wanted, range(count))) for stream, count in expected.items()}
    assert streams == {stream: seqs for stream, seqs in complete.items() if seqs}


def wait_settled(data_dir: Path, topic: str = "drill.web", timeout_s: float = STARTS_S) -> None:
    """Until everything in the topic has a receipt that is final."""
    log, receipts = EmbeddedLog(data_dir), Receipts(data_dir)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        parts = log.describe(TopicName.parse(topic)).partitions
        behind = [p for p in parts if receipts.frontier(topic, p.partition) < p.end]
        if not behind and not receipts.counts().get(Status.NEW) and not receipts.parked():
            return
        time.sleep(0.1)
    raise AssertionError(f"not settled in {timeout_s:.0f} s: {receipts.frontiers()}")
