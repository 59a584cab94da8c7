"""Senders that wait for their receipts, with a real engine, which dies while they wait."""

from __future__ import annotations

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock import faults
from tests.engine.flows import STARTS_S, THREE_SINKS, in_lines, write_flow
from tests.supervisor.running import Run, clean_environment, request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FLOW = THREE_SINKS.replace(
    'web: {module: receiver.http, params: {bind: "127.0.0.1:0"}}',
    f"""web: {{module: receiver.http, params: {{bind: "127.0.0.1:0", sync_timeout_s: {STARTS_S}}}}}
  wire:
    module: receiver.tcp
    interceptors: [lines]
    params: {{bind: "127.0.0.1:0", reply: status, reply_timeout_s: {STARTS_S}}}""",
).replace("pipeline:", "pipeline:\n  wire: {connect: lines}")


def post(address: str, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(address, timeout=STARTS_S)
    connection.request("POST", path, body)
    answer = connection.getresponse()
    found: dict[str, Any] = orjson.loads(answer.read())
    return answer.status, found


def test_senders_wait_for_the_true_receipt_though_the_engine_is_killed(tmp_path: Path) -> None:
    flow = write_flow(tmp_path, FLOW)
    # The receipts are written, and hardly anybody can have been told.
    rule = {"point": "transaction.recorded", "action": "kill", "once": str(tmp_path / "struck")}
    environment = clean_environment(**{faults.VARIABLE: orjson.dumps([rule]).decode()})
    with (
        Run(flow, "--data-dir", str(tmp_path / "data"), engine=True, env=environment) as run,
        ThreadPoolExecutor(2) as pool,
    ):
        run.wait_ready()
        web = run.addresses["web"]
        paths = ("/?sync=true&dest=nowhere", "/?sync=true&dest=all")
        lost, done = pool.map(lambda path: post(web, path, b"waiting 0"), paths)
        assert (tmp_path / "struck").exists()
        assert (done[0], done[1]["status"]) == (200, "done")
        assert (lost[0], lost[1]["status"]) == (406, "unroutable")
        assert "no route for dest=nowhere" in lost[1]["reason"]
        for _, answer in (done, lost):
            for place in ("web", "admin"):
                found = request(run.addresses[place], "GET", f"/receipts/{answer['id']}")
                assert found == (200, answer)
        host, _, port = run.addresses["wire"].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=STARTS_S) as sock:
            sock.sendall(b"wired 0\nwired 1\n")
            lines = sock.makefile("r")
            assert [lines.readline().split("/")[0] for _ in range(2)] == ["done wire"] * 2
        assert in_lines(tmp_path)[-2:] == ["wired 0", "wired 1"]
        assert run.stop() == 0
