"""A flow file is edited between two runs: what carries on, and what would be lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import faults
from penstock.cli.main import run_command
from penstock.errors import LogError, WouldLose
from penstock.flow.deadletters import DeadLetters
from penstock.flow.planrecord import PlanRecord
from penstock.flow.receipts import Receipts
from penstock.log import TopicName
from penstock.sinks.interface import Txn
from penstock.sinks.registry import make_sink
from penstock.status import Status
from tests.flow.editing import Edited, text_of
from tests.sinks.making import events

BOTH = "web: {connect: copy}, copy: {links: [a, b]}"
TWO = "web: {connect: a}, tcp: {connect: b}"
CUT = "web: {connect: copy}, copy: {links: [unique, b]}, unique: {connect: a}"
COMPUTED = (
    "web: {connect: copy}, copy: {links: [cols, b]}, cols: {connect: unique}, unique: {connect: a}"
)


@pytest.fixture
def edited(tmp_path: Path) -> Edited:
    return Edited(tmp_path)


def nothing(edited: Edited) -> None:
    pass


def unread(topic: str) -> Callable[[Edited], None]:
    return lambda edited: edited.holds(topic, 3)


def all_read(edited: Edited) -> None:
    edited.holds("orders.tcp", 3)
    edited.decides("orders.tcp", 0, read={"orders.tcp": 3})


def parked(edited: Edited) -> None:
    edited.holds("orders.web", 3)
    edited.decides("orders.web", 0, read={"orders.web": 3})
    edited.parks("b", 2)


def owed(edited: Edited) -> None:
    edited.decides("orders.web", 0, owed=["b"])


def remembers(edited: Edited) -> None:
    edited.decides("orders.unique", 4)


def log_removed(edited: Edited) -> None:
    edited.decides("orders.web", 0)
    (edited.folder / "data/engine/orders.web/decisions").unlink()


def drains_log_removed(edited: Edited) -> None:
    (edited.folder / "data/engine/orders.web/drain.b/decisions").unlink()


OTHER_OUT = "{module: sink.dumper, params: {out: FOLDER/other}}"
KEPT_TOPIC = "{module: receiver.tcp, topic: orders.tcp, params: {bind: 127.0.0.1:7072}}"
OTHER_KEY = "{module: link.dedupe, params: {keys: [payload]}}"
OTHER_COLUMNS = "{module: link.select, params: {columns: [key]}}"
FOUR = "{module: receiver.http, params: {bind: 127.0.0.1:7071, partitions: 4}}"

CARRIES_ON = {
    "nothing changed": (BOTH, parked, text_of(BOTH)),
    "a sink is new": (BOTH, parked, text_of("web: {connect: copy}, copy: {links: [a, b, again]}")),
    "a link is new": (
        BOTH,
        parked,
        text_of("web: {connect: keep}, keep: {connect: copy}, " + BOTH[21:]),
    ),
    "a receiver is new": (BOTH, unread("orders.web"), text_of("tcp: {connect: copy}, " + BOTH)),
    "options changed": (BOTH, parked, text_of(BOTH, b=OTHER_OUT)),
    "a sink is gone and nothing waits": (BOTH, unread("orders.web"), text_of("web: {connect: a}")),
    "a receiver is gone and all is read": (TWO, all_read, text_of("web: {connect: a}")),
    "a receiver has a new name and its topic": (
        TWO,
        unread("orders.tcp"),
        text_of("web: {connect: a}, new: {connect: b}", new=KEPT_TOPIC),
    ),
    "a link with state changed that has done nothing": (
        CUT,
        nothing,
        text_of(CUT, unique=OTHER_KEY),
    ),
    "an empty cut goes": (CUT, nothing, text_of(BOTH)),
    "more partitions": (BOTH, unread("orders.web"), text_of(BOTH, web=FOUR)),
}

LOSES = {
    "a sink that messages wait for": (
        *(BOTH, parked, text_of("web: {connect: a}")),
        [("b", "1 message for it waits in orders.b.park, and the sink is gone")],
    ),
    "all or none, and messages wait": (
        *(BOTH, parked, text_of(BOTH, "name: orders\ncommit: atomic")),
        [("b", "nothing is brought from there with `commit: atomic`")],
    ),
    "a sink that is owed a commit": (
        *(BOTH, owed, text_of("web: {connect: a}")),
        [("b", "it is gone, and 1 decided batch is not committed there yet")],
    ),
    "a sink that is owed a commit is another": (
        *(BOTH, owed, text_of(BOTH, b=OTHER_OUT)),
        [("b", "its options changed, and 1 decided batch")],
    ),
    "a receiver with messages to be read": (
        *(TWO, unread("orders.tcp"), text_of("web: {connect: a}")),
        [("tcp", "no receiver fills orders.tcp any more, which has 3 messages")],
    ),
    "a link with state that changed": (
        *(CUT, remembers, text_of(CUT, unique=OTHER_KEY)),
        [("unique", "what it remembers does not fit any more, since the option keys changed")],
    ),
    "other columns come to a link with state": (
        *(COMPUTED, remembers, text_of(COMPUTED, cols=OTHER_COLUMNS)),
        [("unique", "since the link cols before it changed")],
    ),
    "a link with state that is gone": (
        *(CUT, remembers, text_of(BOTH)),
        [("unique", "the link is gone, and with it what it remembers")],
    ),
    "a cut with messages in it": (
        *(CUT, unread("orders.unique"), text_of(BOTH)),
        [("unique", "the topic orders.unique before it is read no more, with 3 messages in it")],
    ),
    "a cut with messages of another form": (
        *(COMPUTED, unread("orders.unique"), text_of(CUT)),
        [("unique", "is to be read as something else, with 3 messages")],
    ),
    "the name": (
        *(BOTH, unread("orders.web"), text_of(BOTH, "name: other")),
        [("the flow orders", "has 3 messages not carried through")],
    ),
    "a decision log": (
        *(BOTH, log_removed, text_of(BOTH)),
        [("web", "engine/orders.web/decisions is gone")],
    ),
    "the decision log of a drain": (
        *(BOTH, drains_log_removed, text_of(BOTH)),
        [("web", "engine/orders.web/drain.b/decisions is gone")],
    ),
}


@pytest.mark.parametrize("name", CARRIES_ON)
def test_what_fits_carries_on(edited: Edited, name: str) -> None:
    before, happened, after = CARRIES_ON[name]
    was = edited.starts(edited.flow(text_of(before)))
    happened(edited)
    read = how_far(edited, was)
    flow = edited.flow(after)
    assert [str(loss) for loss in edited.changes(flow).losses] == []
    now = how_far(edited, edited.starts(flow))
    assert {topic: now[topic] for topic in now.keys() & read.keys()} == {
        topic: read[topic] for topic in now.keys() & read.keys()
    }
    assert "orders.web" in now


def how_far(edited: Edited, record: PlanRecord) -> dict[str, int | None]:
    """Every topic that the flow reads, by whoever reads it."""
    return {
        topic: edited.decisions(use.reader).frontiers.get((topic, 0))
        for topic, use in record.topics.items()
        if use.live
    }


@pytest.mark.parametrize("name", LOSES)
def test_what_would_be_lost_is_named_and_nothing_is_touched(edited: Edited, name: str) -> None:
    before, happened, after, expected = LOSES[name]
    edited.starts(edited.flow(text_of(before)))
    happened(edited)
    flow = edited.flow(after)
    found = edited.changes(flow).losses
    assert [loss.component for loss in found] == [component for component, _ in expected]
    for loss, (_, said) in zip(found, expected, strict=True):
        assert said in loss.what
        assert loss.instead
    kept = files(edited)
    with pytest.raises(WouldLose, match="would be lost with the flow as it is now") as raised:
        edited.starts(flow)
    assert len(raised.value.losses) == len(found)
    assert {path: text for path, text in files(edited).items() if path in kept} == kept


@pytest.mark.parametrize("name", LOSES)
def test_once_a_loss_is_accepted_it_is_not_asked_about_again(edited: Edited, name: str) -> None:
    before, happened, after, _ = LOSES[name]
    edited.starts(edited.flow(text_of(before)))
    happened(edited)
    flow = edited.flow(after)
    edited.starts(flow, accept_loss=True)
    assert edited.changes(flow).losses == ()


def files(edited: Edited) -> dict[Path, bytes]:
    """The record and the decision logs."""
    data = edited.folder / "data"
    found = [*data.glob("flows/*"), *data.glob("engine/**/decisions")]
    return {path: path.read_bytes() for path in found}


# --- How it carries on ----------------------------------------------------------------------------


def test_a_topic_is_read_on_from_where_it_was_whoever_reads_it(edited: Edited) -> None:
    edited.starts(edited.flow(text_of("web: {connect: a}")))
    edited.holds("orders.web", 5)
    edited.decides("orders.web", 0, read={"orders.web": 4})
    # tcp comes first in the file now, and gives the query they share its name.
    together = text_of("tcp: {connect: a}, web: {connect: a}")
    swapped = together.replace("  web:", "  _web:", 1)
    lines = swapped.splitlines(keepends=True)
    web = next(line for line in lines if line.startswith("  _web:"))
    tcp = next(line for line in lines if line.startswith("  tcp:"))
    flow = edited.flow(swapped.replace(web, "").replace(tcp, tcp + web.replace("_web", "web")))
    [piece] = edited.starts(flow).pieces
    assert piece.coordinator == "orders.tcp"
    assert edited.decisions("orders.tcp").frontiers == {("orders.web", 0): 4}
    edited.decides("orders.tcp", 0, read={"orders.web": 5})
    # And back again: what `orders.web` knew long ago does not count any more.
    edited.starts(edited.flow(text_of("web: {connect: a}")))
    assert edited.decisions("orders.web").frontiers == {("orders.web", 0): 5}


def test_a_receiver_that_went_and_came_back_goes_on(edited: Edited) -> None:
    edited.starts(edited.flow(text_of(TWO)))
    all_read(edited)
    edited.starts(edited.flow(text_of("web: {connect: a}")))
    record = edited.starts(edited.flow(text_of("web: {connect: a}, tcp: {connect: a}")))
    assert [piece.coordinator for piece in record.pieces] == ["orders.web"]
    assert edited.decisions("orders.web").frontiers == {("orders.tcp", 0): 3}


def test_what_a_query_had_decided_is_committed_when_the_query_is_no_more(edited: Edited) -> None:
    flow = edited.flow(text_of(TWO))
    edited.starts(flow)
    sink = make_sink(flow.components["b"], flow.data_dir)
    task = sink.task(Txn("orders.tcp", 0), 0, 0)
    task.write(events(b"decided"))
    token = task.prepare().token
    edited.holds("orders.tcp", 1)
    edited.decides("orders.tcp", 0, read={"orders.tcp": 1}, owed=["b"], token=token)
    undecided = sink.task(Txn("orders.tcp", 1), 0, 0)
    undecided.write(events(b"not decided"))
    undecided.prepare()
    edited.starts(edited.flow(text_of("web: {links: [a, b]}, tcp: {connect: b}")))
    assert (edited.folder / "b").read_text() == "decided\n"
    assert sink.uncommitted("orders.tcp") == []
    assert edited.decisions("orders.web").frontiers == {("orders.tcp", 0): 1}


def test_messages_that_wait_for_a_sink_that_is_gone_become_dead_letters(edited: Edited) -> None:
    edited.starts(edited.flow(text_of(BOTH)))
    parked(edited)
    flow = edited.flow(text_of("web: {connect: a}"))
    edited.starts(flow, accept_loss=True)
    receipt = Receipts(flow.data_dir).find("orders.web", 0, 2)
    assert receipt.branches["b"].status is Status.FAILED
    assert Receipts(flow.data_dir).parked() == {}
    assert edited.log.describe(TopicName.parse("orders.dead")).partitions[0].end == 1
    DeadLetters(flow.data_dir, TopicName.parse("orders.dead")).close()


def test_without_its_log_a_query_starts_under_another_name_where_the_receipts_say(
    edited: Edited,
) -> None:
    """Its old numbers may be known to sinks, which would take what is new for repeats."""
    edited.starts(edited.flow(text_of(BOTH)))
    edited.holds("orders.web", 3)
    Receipts(edited.folder / "data", writable=True).settle({("orders.web", 0): 2}, [])
    log_removed(edited)
    [piece] = edited.starts(edited.flow(text_of(BOTH)), accept_loss=True).pieces
    assert piece.coordinator == "orders.web~2"
    assert edited.decisions("orders.web~2").frontiers == {("orders.web", 0): 2}
    assert edited.starts(edited.flow(text_of(BOTH))).pieces[0].coordinator == "orders.web~2"


def test_a_decision_log_from_an_old_copy_is_refused(edited: Edited) -> None:
    flow = edited.flow(text_of(BOTH))
    edited.starts(flow)
    path = edited.folder / "data/engine/orders.web/decisions"
    edited.decides("orders.web", 0)
    old = path.read_bytes()
    edited.decides("orders.web", 1)
    edited.starts(flow)
    path.write_bytes(old)
    [loss] = edited.changes(flow).losses
    assert "is older than the flow's last run" in loss.what


def test_new_state_has_new_numbers_and_the_old_checkpoint_goes(edited: Edited) -> None:
    edited.starts(edited.flow(text_of(CUT)))
    edited.holds("orders.unique", 5)
    edited.decides("orders.unique", 7, read={"orders.unique": 5})
    checkpoint = edited.folder / "data/engine/orders.unique/checkpoint"
    checkpoint.mkdir()
    record = edited.starts(edited.flow(text_of(CUT, unique=OTHER_KEY)), accept_loss=True)
    piece = record.piece("unique")
    assert piece is not None
    assert piece.coordinator == "orders.unique~2"
    assert edited.decisions("orders.unique~2").last == -1
    assert edited.decisions("orders.unique~2").frontiers == {("orders.unique", 0): 5}
    assert not checkpoint.exists()


@pytest.mark.parametrize("where", ["carry.forgiven", "carry.settled", "carry.moved"])
def test_killed_while_it_carries_on_the_next_start_does_the_rest(
    edited: Edited, where: str
) -> None:
    edited.starts(edited.flow(text_of(TWO)))
    edited.holds("orders.tcp", 3)
    edited.decides("orders.tcp", 0, read={"orders.tcp": 2})
    flow = edited.flow(text_of("web: {connect: a}, tcp: {connect: a}"))
    if (child := os.fork()) == 0:
        faults.arm(faults.Rule(where, "kill"))
        edited.starts(flow)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    [piece] = edited.starts(flow).pieces
    assert piece.coordinator == "orders.web"
    assert edited.decisions("orders.web").frontiers == {("orders.tcp", 0): 2}


def test_a_damaged_record_is_refused(edited: Edited) -> None:
    flow = edited.flow(text_of(BOTH))
    edited.starts(flow)
    (edited.folder / "data/flows/orders.json").write_text('{"flow": ')
    with pytest.raises(LogError, match="restore it, or remove it if the flow file has not changed"):
        edited.changes(flow)


def test_check_and_run_say_what_would_be_lost_and_start_nothing(
    edited: Edited, capsys: pytest.CaptureFixture[str]
) -> None:
    edited.starts(edited.flow(text_of(TWO)))
    edited.holds("orders.tcp", 3)
    edited.flow(text_of("web: {connect: a}"))
    arguments = [str(edited.folder / "orders.yaml"), "--data-dir", str(edited.folder / "data")]
    assert run_command(["check", *arguments]) == 4
    assert "would be lost: tcp: no receiver fills orders.tcp any more" in capsys.readouterr().out
    before = files(edited)
    for once in ([], ["--once"]):
        assert run_command(["run", *arguments, *once, "--no-view"]) == 4
        shown = capsys.readouterr()
        assert "tcp: no receiver fills orders.tcp any more" in shown.err
        assert "nothing was started" in shown.err
        assert shown.out == ""
    assert files(edited) == before
