"""Penstock and the servers beside it, each started the way its own users would want it fast.

All listen on loopback only, keep their files in a folder of the run, and belong to no service
manager. Each gets the same single core.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import tools
from bench.machine import Cores
from bench.process import Server, free_port, on_core
from penstock.log.embedded import EmbeddedLog
from penstock.log.names import TopicName

# What comes in stays in the topic `bench.in`: nothing reads it while the edge is measured.
FLOW = """\
name: bench
system:
  maxprocs: 1
  admin: {{enabled: true, bind: "127.0.0.1:{admin}"}}
components:
  in:
    module: {module}
    interceptors: {interceptors}
    params: {{bind: "127.0.0.1:{port}"}}
  out: {{module: sink.dumper}}
pipeline:
  in: {{connect: out}}
"""

NGINX = """\
{user}
worker_processes 1;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 300s;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{ return 200 "ok"; }}
  }}
}}
"""

# The raw message as it came, through one buffered file, never synced. The queue is left as rsyslog
# has it: larger queues and batches, a direct queue and an asynchronous writer were each tried, and
# none was faster.
RSYSLOG = """\
global(workDirectory="{folder}" net.enableDNS="off")
module(load="imtcp")
template(name="raw" type="string" string="%rawmsg%\\n")
ruleset(name="store") {{
  action(type="omfile" file="{out}" template="raw" ioBufferSize="1m" sync="off")
}}
input(type="imtcp" address="127.0.0.1" port="{port}" ruleset="store")
"""

# Two Go schedulers on the one core. With a single one, a blocking fdatasync stops everything else
# until the runtime notices: 256 connections then get a seventh of this. That would be no peer.
GO_MAX_PROCS = "2"


@dataclass(slots=True)
class Penstock:
    """A running `penstock run`, with the folder its topics are in."""

    server: Server
    port: int
    admin_port: int
    data_dir: Path

    TOPIC = "bench.in"

    @contextmanager
    def watch(self) -> Iterator[Callable[[], int]]:
        """Yields what tells the durable messages of the topic, as readers elsewhere see them."""
        log = EmbeddedLog(self.data_dir)
        try:
            reader = log.reader(TopicName.parse(self.TOPIC), 0)
            try:
                yield reader.end
            finally:
                reader.close()
        finally:
            log.close()

    def stored(self) -> int:
        with self.watch() as end:
            return end()

    def fsyncs(self) -> int:
        """How often the log has synced so far, from the metrics; 0 if it does not say."""
        address = f"http://127.0.0.1:{self.admin_port}/metrics"
        with urllib.request.urlopen(address, timeout=10) as answer:
            text = answer.read().decode()
        counts = re.findall(r"^penstock\w*fsync\w*_count(?:\{[^}]*\})? (\S+)", text, re.MULTILINE)
        return int(sum(map(float, counts)))


def start_penstock(
    folder: Path, cpu: int | None, module: str, interceptors: str = "[]"
) -> Penstock:
    """A fresh data directory each time: no round inherits another's topic."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    kind = socket.SOCK_DGRAM if module == "receiver.udp" else socket.SOCK_STREAM
    port, admin = free_port(kind), free_port()
    flow = folder / "bench.yaml"
    flow.write_text(FLOW.format(module=module, interceptors=interceptors, port=port, admin=admin))
    data_dir = folder / "data"
    command = Path(sys.executable).parent / "penstock"
    server = Server(
        "penstock",
        [str(command), "run", str(flow), "--data-dir", str(data_dir), "--edge-only"],
        cpu=cpu,
        log=folder / "log",
    )
    try:
        server.wait_until_printed("ready")
    except BaseException:
        server.stop()
        raise
    return Penstock(server, port, admin, data_dir)


def start_flow(folder: Path, port: int, text: str, cores: Cores) -> Server:
    """`penstock run` of a flow with a receiver on the port, engine and all, on both cores."""
    flow = folder / "bench.yaml"
    flow.write_text(text)
    command = [str(Path(sys.executable).parent / "penstock"), "run", str(flow)]
    both = f"{cores.server},{cores.client}"
    server = Server(
        "penstock",
        on_core(both, [*command, "--data-dir", str(folder / "data")]),
        cpu=None,
        log=folder / "log",
    )
    _listening(server, port)
    return server


def start_nginx(folder: Path, cpu: int | None) -> tuple[Server, int]:
    nginx = tools.find("nginx")
    folder.mkdir(parents=True)
    port = free_port()
    config = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    config.write_text(NGINX.format(folder=folder, port=port, user=user))
    command = [str(nginx.path), "-p", str(folder), "-e", "stderr", "-c", str(config)]
    server = Server(
        "nginx", [*command, "-g", "daemon off;"], cpu=cpu, log=folder / "log", env=nginx.env
    )
    return _listening(server, port)


def start_gocommit(folder: Path, cpu: int | None) -> tuple[Server, int]:
    program = tools.find("gocommit")
    folder.mkdir(parents=True)
    port = free_port()
    server = Server(
        "gocommit",
        [str(program.path), "-bind", f"127.0.0.1:{port}", "-file", str(folder / "records")],
        cpu=cpu,
        log=folder / "log",
        env={"GOMAXPROCS": GO_MAX_PROCS},
    )
    return _listening(server, port)


def start_rsyslog(folder: Path, cpu: int | None) -> tuple[Server, int, Path]:
    """The server, its port, and the file that the lines end up in."""
    rsyslogd = tools.find("rsyslogd")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    port, out = free_port(), folder / "lines"
    config = folder / "rsyslog.conf"
    config.write_text(RSYSLOG.format(folder=folder, port=port, out=out))
    command = [str(rsyslogd.path), "-n", "-iNONE", "-f", str(config)]
    if rsyslogd.root is not None:
        modules = next(rsyslogd.root.glob("usr/lib/*/rsyslog"))
        command.append(f"-M{modules}")
    server = Server("rsyslog", command, cpu=cpu, log=folder / "log", env=rsyslogd.env)
    _listening(server, port)
    return server, port, out


def _listening(server: Server, port: int) -> tuple[Server, int]:
    try:
        server.wait_until_listening(port)
    except BaseException:
        server.stop()
        raise
    return server, port
