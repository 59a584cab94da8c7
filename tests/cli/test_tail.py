"""`penstock tail`."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import orjson
import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import TopicConfig
from penstock.message import Batch
from tests.cli.commands import Terminal, penstock
from tests.cli.conftest import ORDERS, START_US
from tests.supervisor.running import PENSTOCK, WAIT_S, clean_environment


def payloads(*arguments: str, cwd: Path) -> list[str]:
    result = penstock("tail", "orders", "--json", *arguments, cwd=cwd)
    assert (result.code, result.err) == (0, "")
    return [orjson.loads(line)["payload"] for line in result.lines]


def append(log: EmbeddedLog, *messages: bytes, partition: int = 0) -> None:
    writer = log.writer(ORDERS, partition)
    writer.append([Batch.of("web", "~later", 0, list(messages))])
    writer.close()


def test_a_json_line_has_everything_and_nothing_else(orders: EmbeddedLog, tmp_path: Path) -> None:
    result = penstock("tail", "orders", "--json", "--limit", "1", cwd=tmp_path)
    assert orjson.loads(result.out) == {
        "topic": "orders",
        "partition": 0,
        "offset": 0,
        "time": "2026-01-01T00:00:00.000000Z",
        "id": {"peer": "web", "stream": "~conn0", "seq": 0},
        "key": "k0",
        "meta": {"n": "0"},
        "payload": "message 0",
    }


def test_partitions_are_merged_by_time(orders: EmbeddedLog, tmp_path: Path) -> None:
    assert payloads(cwd=tmp_path) == [f"message {number}" for number in range(10)]


def test_one_partition_can_be_chosen(orders: EmbeddedLog, tmp_path: Path) -> None:
    assert payloads("-p", "1", cwd=tmp_path) == [f"message {n}" for n in range(1, 10, 2)]


@pytest.mark.parametrize(
    ("where", "first"),
    [
        ("beginning", 0),
        ("3", 6),
        ("2026-01-01T00:00:07Z", 7),
        ("2026-01-01T00:00:06.5Z", 7),
        ("100000d", 0),
        ("end", 10),
        ("1s ago", 10),
        ("999999", 10),
    ],
)
def test_reading_begins_where_it_is_told(
    orders: EmbeddedLog, tmp_path: Path, where: str, first: int
) -> None:
    expected = [f"message {number}" for number in range(first, 10)]
    assert payloads("--from", where, cwd=tmp_path) == expected


def test_the_limit_counts_over_all_partitions(orders: EmbeddedLog, tmp_path: Path) -> None:
    assert payloads("--limit", "3", cwd=tmp_path) == ["message 0", "message 1", "message 2"]
    assert payloads("--limit", "0", cwd=tmp_path) == []


def test_what_is_not_utf8_is_base64(orders: EmbeddedLog, tmp_path: Path) -> None:
    writer = orders.writer(ORDERS, 0)
    writer.append([Batch.of("web", "~b", 0, [b"\xff\x00"], keys=[b"\xfe"])])
    writer.close()
    result = penstock("tail", "orders", "--json", "-p", "0", "--from", "5", cwd=tmp_path)
    message = orjson.loads(result.out)
    assert (message["payload"], message["encoding"]) == ("/wA=", "base64")
    assert (message["key"], message["key_encoding"]) == ("/g==", "base64")


def test_raw_gives_the_payloads_as_they_are(orders: EmbeddedLog, tmp_path: Path) -> None:
    append(orders, b"\xff\x1b[31m")
    done = subprocess.run(
        [*PENSTOCK, "tail", "orders", "--raw", "-p", "0", "--from", "4"],
        cwd=tmp_path,
        capture_output=True,
        env=clean_environment(),
        check=True,
        timeout=WAIT_S,
    )
    assert done.stdout == b"message 8\n\xff\x1b[31m\n"


def test_a_pipe_gets_tabbed_lines(orders: EmbeddedLog, tmp_path: Path) -> None:
    append(orders, b"two\nlines\tand \x1b[31mred")
    result = penstock("tail", "orders", "-p", "0", "--from", "4", cwd=tmp_path)
    rows = [line.split("\t") for line in result.lines]
    assert rows[0] == [
        "2026-01-01T00:00:08.000000Z", "0/4", "web/~conn0/4", "k8", "n=8", "message 8",
    ]  # fmt: skip
    assert rows[1][-1] == r"two\nlines\tand \x1b[31mred"


def test_a_terminal_gets_colour_and_no_payload_can_act_on_it(
    orders: EmbeddedLog, tmp_path: Path
) -> None:
    append(orders, b"\x1b[2J\x1b]0;title\x07gone")
    with Terminal("tail", "orders", "-p", "0", "--from", "4", cwd=tmp_path, width=200) as terminal:
        assert terminal.finish() == 0
        assert "message 8" in terminal.text
        assert r"\x1b[2J\x1b]0;title\x07gone" in terminal.text
        assert "\x1b[2J" not in terminal.raw
        assert "\x1b[2m" in terminal.raw
    with Terminal("tail", "orders", cwd=tmp_path, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.finish() == 0
        assert "\x1b[" not in terminal.raw


def test_following_goes_on_with_what_comes_until_ctrl_c(
    orders: EmbeddedLog, tmp_path: Path
) -> None:
    with Terminal("tail", "orders", "--raw", "-f", "--from", "end", cwd=tmp_path) as terminal:
        # The end is taken when the command has started: keep sending until it shows one.
        for number in range(10_000):
            append(orders, b"came %d" % number, partition=number % 2)
            if terminal.seen("came"):
                break
        append(orders, b"and one more", partition=1)
        terminal.wait_for("and one more")
        terminal.type("\x03")
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.text


def test_following_sees_partitions_that_come_later(orders: EmbeddedLog, tmp_path: Path) -> None:
    with Terminal("tail", "orders", "--raw", "-f", cwd=tmp_path) as terminal:
        terminal.wait_for("message 9")
        orders.create(ORDERS, TopicConfig(partitions=3))
        append(orders, b"in the third", partition=2)
        terminal.wait_for("in the third")


def test_following_ends_at_the_limit(orders: EmbeddedLog, tmp_path: Path) -> None:
    assert len(payloads("-f", "--limit", "10", cwd=tmp_path)) == 10


def test_it_ends_quietly_when_its_reader_goes_away(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create(ORDERS, TopicConfig())
    writer = log.writer(ORDERS, 0)
    writer.append([Batch.of("web", "~x", 0, [b"x" * 100] * 20_000)])
    writer.close()
    with subprocess.Popen(
        [*PENSTOCK, "tail", "orders", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == -signal.SIGPIPE  # a shell shows 141
        assert process.stderr.read() == b""


def test_ctrl_c_in_a_pipe_is_quiet(orders: EmbeddedLog, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*PENSTOCK, "tail", "orders", "--raw", "-f"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=clean_environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"message 0\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stderr.read() == b""


def test_corrupt_messages_are_left_out_named_and_make_the_exit_code_1(
    orders: EmbeddedLog, tmp_path: Path
) -> None:
    segment = next((tmp_path / ".penstock/topics/default/orders/0001").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"message 3")] ^= 0xFF
    segment.write_bytes(data)
    result = penstock("tail", "orders", "--raw", cwd=tmp_path)
    assert result.code == 1
    assert result.lines == [f"message {number}" for number in range(10) if number != 3]
    assert result.err.count("\n") == 1
    assert "offset 1 cannot be read" in result.err


def test_an_empty_topic_gives_nothing(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create(ORDERS, TopicConfig(partitions=3))
    result = penstock("tail", "orders", cwd=tmp_path)
    assert (result.code, result.out, result.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["tail", "ordres"], 3, "did you mean orders?"),
        (["tail", "orders", "-p", "2"], 3, "has no partition 2"),
        (["tail", "orders", "-p", "-1"], 2, "--partition"),
        (["tail", "orders", "--from", "yesterday"], 2, "--from 'yesterday'"),
        (["tail", "orders", "--json", "--raw"], 2, "choose one"),
        (["tail", "orders", "--limit", "-1"], 2, "--limit"),
        (["tail"], 2, "TOPIC"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    orders: EmbeddedLog, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    result = penstock(*arguments, cwd=tmp_path)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_many_messages_are_printed_in_one_go(log: EmbeddedLog, tmp_path: Path) -> None:
    log.create(ORDERS, TopicConfig(partitions=2))
    for partition in (0, 1):
        writer = log.writer(ORDERS, partition)
        for start in range(0, 50_000, 10_000):
            batch = Batch.of(
                "web", "~x", start, [b"x"] * 10_000, time_us=START_US + start + partition
            )
            writer.append([batch])
        writer.close()
    lines = penstock("tail", "orders", "--json", cwd=tmp_path).lines
    assert len(lines) == 100_000
    times = [orjson.loads(line)["time"] for line in lines]
    assert times == sorted(times)
