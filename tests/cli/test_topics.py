"""`penstock topics`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import Retention, TopicConfig
from penstock.log.names import TopicName
from tests.cli.commands import Terminal, penstock
from tests.cli.conftest import ORDERS


def test_a_topic_is_created_with_its_settings(tmp_path: Path) -> None:
    result = penstock(
        "topics", "create", "shop/sales", "-p", "3", "--compression", "zstd", "--keep", "7d",
        "--keep-bytes", "1GiB", "--segment-bytes", "64MiB", "--segment-age", "10m", cwd=tmp_path,
    )  # fmt: skip
    assert (result.code, result.err) == (0, "")
    assert result.out == "created topic shop/sales with 3 partitions\n"
    config = EmbeddedLog(tmp_path / ".penstock").config(TopicName("shop", "sales"))
    assert config.retention == Retention(age_s=7 * 86400.0, size_bytes=2**30)
    assert (config.partitions, config.compression) == (3, "zstd")
    assert (config.segment_bytes, config.segment_age_s) == (64 * 2**20, 600.0)


def test_creating_again_changes_nothing_and_partitions_grow(tmp_path: Path) -> None:
    assert penstock("topics", "create", "a", cwd=tmp_path).code == 0
    again = penstock("topics", "create", "a", cwd=tmp_path)
    assert (again.code, again.out) == (0, "topic a was there already\n")
    grown = penstock("topics", "create", "a", "-p", "2", cwd=tmp_path)
    assert (grown.code, grown.out) == (0, "changed topic a: partitions 1 → 2\n")
    assert penstock("topics", "create", "a", cwd=tmp_path).out == "topic a was there already\n"
    shrunk = penstock("topics", "create", "a", "-p", "1", cwd=tmp_path)
    assert shrunk.code == 4
    assert "may only grow" in shrunk.err


def test_settings_of_a_topic_change_and_those_not_given_stay(tmp_path: Path) -> None:
    def create(*arguments: str) -> TopicConfig:
        made = penstock("topics", "create", "a", *arguments, cwd=tmp_path)
        assert (made.code, made.err) == (0, "")
        return EmbeddedLog(tmp_path / ".penstock").config(TopicName("default", "a"))

    assert create("--keep", "7d", "-p", "2").retention == Retention(7 * 86_400.0)
    assert create("--keep-bytes", "1GiB").retention == Retention(7 * 86_400.0, 2**30)
    assert create("--compression", "lz4").partitions == 2
    config = create("--keep", "kept", "--segment-age", "1m")
    assert config == TopicConfig(2, "log", "lz4", Retention(None, 2**30), segment_age_s=60.0)
    refused = penstock("topics", "create", "a", "--ids", "producer", cwd=tmp_path)
    assert refused.code != 0
    assert "ids" in refused.err or "partition" in refused.err


def test_topics_are_listed_as_tabbed_lines_in_a_pipe(orders: EmbeddedLog, tmp_path: Path) -> None:
    result = penstock("topics", "list", cwd=tmp_path)
    assert result.code == 0
    (row,) = [line.split("\t") for line in result.lines]
    assert row[:3] == ["orders", "2", "10"]
    assert int(row[3]) > 0


def test_topics_are_a_table_on_a_terminal(orders: EmbeddedLog, tmp_path: Path) -> None:
    with Terminal("topics", "list", cwd=tmp_path) as terminal:
        assert terminal.finish() == 0
        head, row = [line.split() for line in terminal.text.strip().splitlines()]
        assert head == ["topic", "partitions", "messages", "size"]
        assert row[:3] == ["orders", "2", "10"]
        assert "\x1b[1m" in terminal.raw


def test_no_color_is_respected(orders: EmbeddedLog, tmp_path: Path) -> None:
    with Terminal("topics", "list", cwd=tmp_path, env={"NO_COLOR": "1"}) as terminal:
        assert terminal.finish() == 0
        assert "orders" in terminal.text
        # Bold is no colour; red, green and their like are 3x, 4x, 9x.
        assert not any(f"\x1b[{tens}{ones}m" in terminal.raw for tens in "349" for ones in range(8))


def test_a_topic_is_described(orders: EmbeddedLog, tmp_path: Path) -> None:
    result = penstock("topics", "describe", "orders", cwd=tmp_path)
    rows = [line.split("\t") for line in result.lines]
    assert [(row[0], row[1], row[2], row[6]) for row in rows] == [
        ("0", "0", "5", "-"),
        ("1", "0", "5", "-"),
    ]
    with Terminal("topics", "describe", "orders", cwd=tmp_path) as terminal:
        assert terminal.finish() == 0
        assert "compression  none" in terminal.text
        assert "last append" in terminal.text


def test_deleting_asks_for_the_name(orders: EmbeddedLog, tmp_path: Path) -> None:
    with Terminal("topics", "delete", "orders", cwd=tmp_path) as terminal:
        terminal.wait_for("10 messages").wait_for("Type its name")
        terminal.type("orders\n")
        assert terminal.finish() == 0
        assert "deleted topic orders" in terminal.text
    assert orders.topics() == []


@pytest.mark.parametrize("answer", ["yes\n", "\n", "order\n"])
def test_another_answer_deletes_nothing(orders: EmbeddedLog, tmp_path: Path, answer: str) -> None:
    with Terminal("topics", "delete", "orders", cwd=tmp_path) as terminal:
        terminal.wait_for("Type its name")
        terminal.type(answer)
        assert terminal.finish() == 4
        assert "nothing was deleted" in terminal.text
    assert orders.topics() == [ORDERS]


def test_ctrl_c_at_the_question_deletes_nothing(orders: EmbeddedLog, tmp_path: Path) -> None:
    with Terminal("topics", "delete", "orders", cwd=tmp_path) as terminal:
        terminal.wait_for("Type its name")
        terminal.type("\x03")
        assert terminal.finish() == 130
        assert "Traceback" not in terminal.text
    assert orders.topics() == [ORDERS]


def test_without_a_terminal_deleting_needs_yes(orders: EmbeddedLog, tmp_path: Path) -> None:
    refused = penstock("topics", "delete", "orders", cwd=tmp_path, stdin=b"orders\n")
    assert (refused.code, refused.out) == (4, "")
    assert "--yes" in refused.err
    assert orders.topics() == [ORDERS]
    assert penstock("topics", "delete", "orders", "--yes", cwd=tmp_path).code == 0
    assert orders.topics() == []


def test_a_topic_that_is_written_is_not_deleted(orders: EmbeddedLog, tmp_path: Path) -> None:
    writer = orders.writer(ORDERS, 0)
    result = penstock("topics", "delete", "orders", "--yes", cwd=tmp_path)
    writer.close()
    assert result.code == 4
    assert "in use" in result.err
    assert orders.topics() == [ORDERS]


def test_a_sound_topic_is_verified(orders: EmbeddedLog, tmp_path: Path) -> None:
    result = penstock("topics", "verify", "orders", cwd=tmp_path)
    assert result.code == 0
    assert "10 messages" in result.out
    assert "all sound" in result.out


def test_a_damaged_topic_is_named_with_the_place(orders: EmbeddedLog, tmp_path: Path) -> None:
    segment = next((tmp_path / ".penstock/topics/default/orders/0000").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    place = data.index(b"message 4")
    data[place] ^= 0xFF
    segment.write_bytes(data)
    result = penstock("topics", "verify", "orders", cwd=tmp_path)
    assert result.code == 1
    assert str(segment) in result.err
    assert "offset 2 cannot be read" in result.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topics", "describe", "ordesr"], 3, "did you mean orders?"),
        (["topics", "describe", "zzz"], 3, "penstock topics list"),
        (["topics", "describe", "zzz"], 3, "/.penstock; "),
        (
            ["topics", "describe", "zzz"],
            3,
            "another data directory: --data-dir or PENSTOCK_DATA_DIR",
        ),
        (["topics", "describe", "zzz", "--data-dir", "."], 3, "no topic is there"),
        (["topics", "describe", "Orders"], 2, "a-z"),
        (["topics", "create", "../up"], 2, "namespace name '..'"),
        (["topics", "create", "x", "-p", "0"], 2, "--partitions"),
        (["topics", "create", "x", "-p", "2", "--ids", "producer"], 2, "exactly one partition"),
        (["topics", "create", "x", "--keep", "soon"], 2, "--keep 'soon'"),
        (["topics", "create", "x", "--keep", "0s"], 2, "--keep '0s'"),
        (["topics", "create", "x", "--segment-bytes", "1"], 2, "--segment-bytes"),
        (["topics", "create", "x", "--compression", "gzip"], 2, "gzip"),
        (["topics", "lisst"], 2, "Did you mean 'list'"),
        (["topics", "list", "--data-dir", "nowhere"], 3, "nowhere"),
        (["topics", "list", "--data-dir", "/dev/null"], 2, "not a directory"),
        (["topics", "list", "-n", "../x"], 2, "namespace"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    orders: EmbeddedLog, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    result = penstock(*arguments, cwd=tmp_path)
    assert (result.code, result.out) == (code, "")
    assert said in result.err
    assert result.err.startswith("penstock: ")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("damage", ["topic.json", "0001/tail"])
def test_a_damaged_topic_hides_no_other(orders: EmbeddedLog, tmp_path: Path, damage: str) -> None:
    for name in ("zebras", "apples"):
        orders.create(TopicName("default", name), TopicConfig(partitions=2))
    os.truncate(tmp_path / ".penstock/topics/default/orders" / damage, 0)
    listed = penstock("topics", "list", cwd=tmp_path)
    assert listed.code == 1
    assert [line.split("\t")[0] for line in listed.lines] == ["apples", "orders", "zebras"]
    assert listed.lines[1] == "orders\t-\t-\t-"
    assert listed.err.startswith("penstock: topic orders: ")
    assert f"{damage} is damaged" in listed.err
    assert listed.err.count("\n") == 1


def test_a_tail_that_was_lost_is_repaired_as_its_error_says(
    orders: EmbeddedLog, tmp_path: Path
) -> None:
    os.truncate(tmp_path / ".penstock/topics/default/orders/0001/tail", 0)
    error = penstock("topics", "describe", "orders", cwd=tmp_path).err
    command = error.split("`")[1].split()
    assert command[0] == "penstock"
    assert penstock(*command[1:], cwd=tmp_path).code == 0
    listed = penstock("topics", "list", cwd=tmp_path)
    assert (listed.code, listed.err) == (0, "")
    assert listed.lines[0].split("\t")[:3] == ["orders", "2", "10"]


@pytest.mark.parametrize("stored", ['{"partitions": "2"}', "[]", '{"retention": null}', "\xff"])
def test_settings_that_make_no_sense_are_damage(
    orders: EmbeddedLog, tmp_path: Path, stored: str
) -> None:
    path = tmp_path / ".penstock/topics/default/orders/topic.json"
    given = json.loads(stored) if stored.startswith("{") else None
    sane = json.loads(path.read_text())
    path.write_text(stored if given is None else json.dumps(sane | given))
    listed = penstock("topics", "list", cwd=tmp_path)
    assert (listed.code, listed.out) == (1, "orders\t-\t-\t-\n")
    assert "topic.json is damaged" in listed.err
