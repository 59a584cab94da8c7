"""The servers that the tests talk to: Redis, PostgreSQL and a Kafka broker. `make test` fetches what is missing.

    python -m tools.services        fetch, and say what is there

Each `running_…` starts a server of its own on loopback, on a free port, with its data in a temporary folder, and
stops it at the end. None of them uses a server that was running before.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools import programs
from tools.programs import Missing, Program

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / ".tools"
START_TIMEOUT_S = 120.0  # a broker on a busy machine takes its time
STOP_TIMEOUT_S = 20.0
NOBODY = 65534  # PostgreSQL refuses to run as root


def redis_program() -> Program:
    return programs.find("redis-server", "redis-server", TOOLS)


def postgres_program() -> Program:
    """`initdb`; the other programs lie beside it."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if installed:
        return Program(installed[-1])
    return programs.find("initdb", "postgresql", TOOLS)


def kafka_jars() -> Path:
    """The folder of the broker's jars."""
    jars = TOOLS / "kafka"
    stamp = jars / ".complete"
    if not stamp.exists():
        if shutil.which("mvn") is None:
            programs.install("maven")
        print(f"  kafka: copying the broker's jars into {jars}", flush=True)
        shutil.rmtree(jars, ignore_errors=True)
        pom = ROOT / "tools" / "kafka" / "pom.xml"
        copy = ["mvn", "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        copy += [f"-DoutputDirectory={jars}", "-DincludeScope=runtime"]
        programs.call(copy, "maven", 600)
        stamp.touch()
    return jars


@contextmanager
def running_redis() -> Iterator[int]:
    """Its port. What it acknowledges is on disk: appendfsync always."""
    program, port = redis_program(), free_port()
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        command = [str(program.path), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        with _process(command, program.env, Path(folder) / "log") as process:
            _await(process, lambda: _answers(port, b"PING\r\n", b"+PONG"), Path(folder) / "log")
            yield port


@contextmanager
def running_postgres() -> Iterator[int]:
    """Its port. User and database `postgres`, no password on loopback; prepared transactions allowed."""
    program, port = postgres_program(), free_port()
    programs_dir = program.path.parent
    with tempfile.TemporaryDirectory(prefix="postgres-") as folder:
        data, log = Path(folder) / "data", Path(folder) / "log"
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        initdb = [str(programs_dir / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust"]
        with _process([*initdb, "-E", "UTF8", "--no-sync"], program.env, log, unroot=True) as made:
            if made.wait(START_TIMEOUT_S) != 0:
                raise Missing(f"initdb failed: {_last_lines(log)}")
        command = [str(programs_dir / "postgres"), "-D", str(data), "-p", str(port)]
        for setting in (
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={folder}",
            "max_prepared_transactions=100",
            "wal_level=logical",
        ):
            command += ["-c", setting]
        with _process(command, program.env, log, unroot=True) as process:
            ready = [str(programs_dir / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
            env = {**os.environ, **program.env}
            _await(process, lambda: subprocess.run(ready, env=env).returncode == 0, log)
            yield port


@contextmanager
def running_kafka() -> Iterator[int]:
    """Its port. One node in KRaft mode, with transactions; topics are made when they are written to."""
    jars, port, controller = kafka_jars(), free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="kafka-") as folder:
        config, log = Path(folder) / "server.properties", Path(folder) / "log"
        config.write_text(
            f"""process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
num.partitions=2
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
"""
        )
        java = [_java(), "-Xmx384m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
        java.append("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
        cluster = ["format", "-t", "penstockTestsAAAAAAAAA", "-c", str(config)]
        with _process([*java, "kafka.tools.StorageTool", *cluster], {}, log) as made:
            if made.wait(START_TIMEOUT_S) != 0:
                raise Missing(f"the broker's storage cannot be formatted: {_last_lines(log)}")
        with _process([*java, "kafka.Kafka", str(config)], {}, log) as process:
            _await(process, lambda: _answers(port, _KAFKA_HELLO, b""), log)
            yield port


# ApiVersions, version 0, correlation 1, no client id: a broker that is up answers, whatever its version.
_KAFKA_HELLO = bytes.fromhex("0000000a 0012 0000 00000001 ffff")


_PORTS = (12_000, 32_000)
"""Below those that the kernel gives to whoever connects: such a port is not taken by a connection of another test
before the program that is told of it listens."""


def free_port() -> int:
    """Of the loopback; nobody has it now."""
    while True:
        # Not of the seed that replays a test: two lanes would get the same.
        port = random.SystemRandom().randint(*_PORTS)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    for found in (home and f"{home}/bin/java", shutil.which("java"), ROOT / ".java/bin/java"):
        if found and Path(found).exists():
            return str(found)
    raise Missing("no Java: run `make setup`")


@contextmanager
def _process(
    command: list[str], env: dict[str, str], log: Path, *, unroot: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Stopped at the end, whatever happens."""
    user = NOBODY if unroot and os.geteuid() == 0 else None
    with log.open("ab") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **env, "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd=log.parent,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT if unroot else signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise Missing(f"{Path(process.args[0]).name} did not start: {_last_lines(log)}")  # type: ignore[index]
        time.sleep(0.1)


def _answers(port: int, hello: bytes, begins: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as asked:
            asked.sendall(hello)
            found = asked.recv(64)
    except OSError:
        return False
    return bool(found) and found.startswith(begins)


def _last_lines(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").splitlines()[-5:])


def main() -> int:
    try:
        print(f"redis: {redis_program().path}")
        print(f"postgres: {postgres_program().path}")
        print(f"kafka: {kafka_jars()}")
    except Missing as error:
        print(f"penstock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
