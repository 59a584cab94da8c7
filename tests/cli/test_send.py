"""`penstock send`."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.log import SCHEMA, TopicConfig, TopicName
from penstock.log.embedded import EmbeddedLog
from tests.cli.commands import Terminal, penstock
from tests.cli.conftest import ORDERS
from tests.supervisor.running import ONE_RECEIVER, Run


def stored(log: EmbeddedLog, topic: TopicName = ORDERS, partition: int = 0) -> list[bytes]:
    batches = log.reader(topic, partition).read(0)
    return [payload for batch in batches for payload in batch.column("payload").to_pylist()]


@pytest.fixture
def topic(log: EmbeddedLog) -> EmbeddedLog:
    log.create(ORDERS, TopicConfig())
    return log


def test_arguments_lines_and_files_become_messages(topic: EmbeddedLog, tmp_path: Path) -> None:
    sent = penstock("send", "orders", "one", "two", "-k", "k", "-m", "a=b", cwd=tmp_path)
    assert (sent.code, sent.err) == (0, "")
    assert sent.out == "stored 2 messages in orders, partition 0, from offset 0\n"
    assert penstock("send", "orders", cwd=tmp_path, stdin=b"three\nfour\n").code == 0
    (tmp_path / "page").write_bytes(b"five\nsix\n")
    assert penstock("send", "orders", "-F", "page", "--whole", cwd=tmp_path).code == 0
    assert stored(topic) == [b"one", b"two", b"three", b"four", b"five\nsix\n"]
    (first, *_) = topic.reader(ORDERS, 0).read(0, max_rows=1)
    assert first.schema == SCHEMA
    row = first.to_pylist()[0]
    assert (row["peer"], row["key"], row["meta"]) == ("cli", b"k", [("a", "b")])


def test_a_stream_that_is_sent_again_makes_no_duplicates(
    topic: EmbeddedLog, tmp_path: Path
) -> None:
    for said in ("stored 3 messages", "; 3 were there already"):
        sent = penstock(
            "send", "orders", "-F", "-", "--stream", "s", cwd=tmp_path, stdin=b"a\nb\nc"
        )
        assert said in sent.out
    assert stored(topic) == [b"a", b"b", b"c"]


def test_a_partition_that_someone_keeps_is_reported_with_who(
    topic: EmbeddedLog, tmp_path: Path
) -> None:
    writer = topic.writer(ORDERS, 0)
    sent = penstock("send", "orders", "x", "--wait", "0.2", cwd=tmp_path)
    writer.close()
    assert sent.code == 4
    assert "partition 0 of topic orders is in use by process" in sent.err


@pytest.mark.slow
def test_messages_can_be_sent_beside_a_running_flow(tmp_path: Path) -> None:
    flow = tmp_path / "orders.yaml"
    flow.write_text(ONE_RECEIVER)
    with Run(flow) as run:
        run.wait_ready().post(b"from the web")
        for said in ("stored 2 messages in orders.web", "2 were there already"):
            sent = penstock("send", "orders.web", "a", "b", "--stream", "s", cwd=tmp_path)
            assert (sent.code, sent.err) == (0, "")
            assert said in sent.out
        run.post(b"from the web again")
        assert run.stop() == 0
    log = EmbeddedLog(tmp_path / ".penstock")
    expected = [b"from the web", b"a", b"b", b"from the web again"]
    assert stored(log, TopicName.parse("orders.web")) == expected


def test_a_file_is_sent_by_lines(topic: EmbeddedLog, tmp_path: Path) -> None:
    lines = [b"line %d" % number for number in range(50_000)]
    lines[7] = b""  # an empty line is no message
    (tmp_path / "many").write_bytes(b"\n".join(lines))  # the last one has no end
    sent = penstock("send", "orders", "--file", "many", "--stream", "s", cwd=tmp_path)
    count = len(stored(topic))
    assert (sent.code, sent.err) == (0, "")
    assert sent.out == f"stored {count:,} messages in orders, partition 0, from offset 0\n"
    assert [line for line in stored(topic) if line] == [line for line in lines if line]
    again = penstock("send", "orders", "--file", "many", "--stream", "s", cwd=tmp_path)
    assert f"{count:,} were there already" in again.out
    assert len(stored(topic)) == count
    missing = penstock("send", "orders", "--file", "nowhere", cwd=tmp_path)
    assert (missing.code, missing.err) == (3, "penstock: there is no file nowhere\n")


def test_a_person_who_sends_sees_how_far_it_is(topic: EmbeddedLog, tmp_path: Path) -> None:
    (tmp_path / "many").write_bytes(b"x" * 99 + b"\n" + b"y" * 99 + b"\n")
    with Terminal("send", "orders", "--file", "many", cwd=tmp_path, width=140) as terminal:
        assert terminal.finish() == 0
        assert "many" in terminal.text, "the file is named"
        assert "2 messages" in terminal.text
        assert "200/200 bytes" in terminal.text
        assert "stored 2 messages in orders, partition 0, from offset 0" in terminal.text
    with Terminal("send", "orders", cwd=tmp_path, width=140) as terminal:
        terminal.wait_for("reading messages, one a line; Ctrl-D ends")
        terminal.type("typed\n\x04")
        assert terminal.finish() == 0
        assert "1 message" in terminal.text
    assert stored(topic)[-1] == b"typed"
