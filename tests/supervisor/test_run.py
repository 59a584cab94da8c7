"""`penstock run` from start to stop, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName
from tests.supervisor.running import (
    ONE_RECEIVER,
    Run,
    alive,
    clean_environment,
    eventually,
    request,
)

pytestmark = pytest.mark.slow
TOPIC = TopicName("default", "orders.web")


def payloads(data_dir: Path, topic: TopicName = TOPIC) -> list[bytes]:
    log = EmbeddedLog(data_dir)
    found = []
    for partition in range(log.config(topic).partitions):
        reader = log.reader(topic, partition)
        for batch in reader.read(0):
            found += batch.column("payload").to_pylist()
    return found


def test_a_flow_starts_takes_messages_and_stops_cleanly(flow: Path) -> None:
    with Run(flow) as run:
        run.wait_ready()
        assert run.call("GET", "/ready") == (200, {"ready": True})
        run.post(b"one")
        edge, keeper = run.pid("edge-0"), run.pid("keeper")
        assert run.stop() == 0
        assert not alive(edge)
        assert not alive(keeper)
    data_dir = flow.parent / ".penstock"
    assert payloads(data_dir) == [b"one"]
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700


def test_ctrl_c_is_a_clean_stop(flow: Path) -> None:
    with Run(flow) as run:
        run.wait_ready()
        assert run.stop(signal.SIGINT) == 0


def test_a_signal_during_the_start_is_a_clean_stop(flow: Path) -> None:
    with Run(flow) as run:
        eventually(lambda: (flow.parent / ".penstock/supervisor.lock").exists(), "the lock")
        assert run.stop() == 0


def test_what_was_stored_is_there_after_a_restart_on_another_number_of_processes(
    flow: Path,
) -> None:
    with Run(flow) as run:
        run.wait_ready().post(b"first")
        assert run.stop() == 0
    with Run(flow, "--maxprocs", "2") as run:
        run.wait_ready()
        assert set(run.processes()) == {"edge-0", "edge-1", "keeper"}
        for _ in range(20):
            run.post(b"more")
        _, topic = run.call("GET", "/topics/default/orders.web")
        assert len(topic["partitions"]) == 2
        # Both processes have the port: connections were spread by the kernel.
        assert {part["writer"] is not None for part in topic["partitions"]} == {True}
        assert run.stop() == 0
    assert sorted(payloads(flow.parent / ".penstock")) == [b"first", *[b"more"] * 20]


def test_a_killed_supervisor_leaves_nothing_running(flow: Path) -> None:
    with Run(flow, "--maxprocs", "2") as run:
        run.wait_ready().post(b"kept")
        pids = [run.pid(name) for name in run.processes()]
        assert run.stop(signal.SIGKILL) == -signal.SIGKILL
        for pid in pids:
            eventually(lambda pid=pid: not alive(pid), f"process {pid} ends by itself")
    with Run(flow) as run:
        run.wait_ready()
        assert run.stop() == 0
    assert payloads(flow.parent / ".penstock") == [b"kept"]


def test_a_process_that_does_not_stop_in_time_is_killed_and_the_stop_is_not_clean(
    flow: Path,
) -> None:
    with Run(flow, "--set", "stop_timeout_s=0.5") as run:
        edge = run.wait_ready().pid("edge-0")
        os.kill(edge, signal.SIGSTOP)
        assert run.stop() == 1
        assert not alive(edge)


def test_a_second_signal_stops_at_once(flow: Path) -> None:
    with Run(flow, "--set", "stop_timeout_s=1h") as run:
        edge = run.wait_ready().pid("edge-0")
        os.kill(edge, signal.SIGSTOP)
        run.process.send_signal(signal.SIGTERM)
        eventually(lambda: run.call("GET", "/ready")[0] == 503, "the stop begins")
        assert run.stop() == 1
        assert not alive(edge)


def test_a_port_in_use_is_reported_before_anything_starts(flow: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        flow.write_text(
            ONE_RECEIVER.replace('params: {bind: "127.0.0.1:0"}', f"params: {{bind: '{address}'}}")
        )
        with Run(flow) as run:
            assert run.ended() == 1
            assert f"penstock: web: tcp {address} is in use" in run.log()
            assert "Traceback" not in run.log()


def test_a_receiver_that_cannot_listen_ends_the_start(flow: Path, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "such" / "folder" / "socket"
    flow.write_text(
        ONE_RECEIVER.replace("receiver.http", "receiver.unix").replace(
            'params: {bind: "127.0.0.1:0"}', f"params: {{path: {missing}}}"
        )
    )
    with Run(flow) as run:
        assert run.ended() == 1
        assert str(missing) in run.log()
        assert "Traceback" not in run.log()


def test_a_second_run_on_the_same_data_is_refused_with_who_has_it(flow: Path) -> None:
    with Run(flow) as first:
        first.wait_ready()
        with Run(flow) as second:
            assert second.ended() == 4
            assert f"pid {first.process.pid} on" in second.log()
        first.post(b"undisturbed")
        assert first.stop() == 0


def test_secrets_are_in_no_argument_no_environment_and_no_log(flow: Path, tmp_path: Path) -> None:
    secret = "correct-horse-battery"
    (tmp_path / "token").write_text(secret)
    flow.write_text(
        ONE_RECEIVER.replace(
            'params: {bind: "127.0.0.1:0"}',
            f'params: {{bind: "127.0.0.1:0", tokens: ["${{file:{tmp_path}/token}}"]}}',
        )
    )
    with Run(flow, "--log-level", "debug") as run:
        run.wait_ready()
        address = run.addresses["web"]
        assert request(address, "POST", "/", b"x")[0] == 401
        bearer = {"Authorization": f"Bearer {secret}"}
        assert request(address, "POST", "/", b"x", bearer)[0] == 202
        for name in run.processes():
            for view in ("cmdline", "environ"):
                seen = Path(f"/proc/{run.pid(name)}/{view}").read_bytes()
                assert secret.encode() not in seen
        for path in ("/health", "/metrics", "/topics"):
            assert secret not in str(run.call("GET", path)[1])
        assert run.stop() == 0
        assert secret not in run.log()


def test_log_lines_are_json_when_asked_for(flow: Path) -> None:
    import orjson

    with Run(flow, "--log-format", "json") as run:
        run.wait_ready()
        assert run.stop() == 0
        lines = [line for line in run.log().splitlines() if not line.startswith("penstock: ")]
        events = [orjson.loads(line)["event"] for line in lines]
    assert "flow is ready" in events
    assert "stopped" in events


def test_the_admin_api_can_be_switched_off(flow: Path) -> None:
    with Run(flow, "--set", "admin.enabled=false") as run:
        run.wait_ready()
        assert set(run.addresses) == {"web"}
        run.post(b"x")
        assert run.stop() == 0


def test_an_invalid_flow_is_refused_with_every_mistake(flow: Path) -> None:
    flow.write_text("components: {web: {modul: receiver.http}, out: {module: sink.nothing}}\n")
    with Run(flow) as run:
        assert run.ended() == 2
        log = run.log()
    assert "orders.yaml:1:" in log
    assert "modul" in log
    assert "sink.nothing" in log
    assert not (flow.parent / ".penstock").exists()


def test_a_flow_of_which_nothing_can_run_is_refused(flow: Path) -> None:
    flow.write_text(
        """
components:
  in: {module: receiver.ws, params: {bind: "127.0.0.1:0"}}
  out: {module: sink.dumper, params: {out: STDOUT}}
pipeline: {in: {connect: out}}
"""
    )
    with Run(flow) as run:
        assert run.ended() == 1
        assert "no receiver of" in run.log()
        assert "receiver.ws (in)" in run.log()


def test_settings_come_from_the_environment_too(flow: Path, tmp_path: Path) -> None:
    env = clean_environment(PENSTOCK_DATA_DIR=str(tmp_path / "elsewhere"))
    with Run(flow, env=env) as run:
        run.wait_ready().post(b"x")
        assert run.stop() == 0
    assert payloads(tmp_path / "elsewhere") == [b"x"]
