"""`TwoPhaseSink`: what its user is told, and when; what a worker is answered; what survives."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from pathlib import Path

import pytest
import trustme

from penstock.connector.columns import Messages
from penstock.connector.frames import Hello
from penstock.connector.ledger import Decided, Voted
from penstock.connector.participant import Done, Record, Workers
from penstock.errors import LogLocked
from penstock.sdk import Fault, Round, Transaction, TwoPhaseSink
from penstock.sdk.transaction_log import TransactionLog
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.interface import SinkUnavailable
from tests.sdk.workers import TIMEOUT_S, TestWorker, frames
from tests.small_disk import small_disk


class Noting(TwoPhaseSink):
    """Writes down what it is told."""

    def __init__(self, folder: Path, **more: object) -> None:
        super().__init__(folder, **more)  # type: ignore[arg-type]
        self.told: list[tuple[str, ...]] = []
        self.delivered: list[bytes] = []
        self.broken = False

    def prepare(self, txn: Transaction, messages: Round) -> bool:
        found = [message.payload for message in messages]
        self.told.append(("prepare", str(txn)))
        if b"raise" in found:
            raise ValueError("not that one")
        return b"no" not in found

    def commit(self, txn: Transaction) -> None:
        if self.broken:
            raise OSError("the destination is down")
        self.told.append(("commit", str(txn)))

    def abort(self, txn: Transaction) -> None:
        if self.broken:
            raise OSError("the destination is down")
        self.told.append(("abort", str(txn)))

    def deliver(self, messages: Round) -> None:
        self.delivered += messages.payloads()

    def worker_left(self, worker: str) -> None:
        self.told.append(("left", worker))


@pytest.fixture
def sink(tmp_path: Path):
    with Noting(tmp_path / "sink") as sink:
        yield sink


class Nothing:
    """A store that keeps nothing: for what a log says alone."""

    stages = False

    def append(self, worker: str, offset: int, messages: Messages) -> None: ...

    def cut(self, worker: str, offset: int) -> None: ...

    def prepare(self, vote: Voted) -> str:
        return ""

    def log(self, record: Record) -> None: ...

    def carry_out(self, decision: Decided) -> None: ...


def restarted(sink: Noting) -> Noting:
    sink.close()
    return Noting(sink.folder)


def test_a_round_is_prepared_then_committed_then_delivered(sink):
    worker = TestWorker(sink.listen())
    assert worker.round("t1", b"a", b"", b"bc")
    assert sink.told == [("prepare", "t1"), ("commit", "t1")]
    assert sink.delivered == [b"a", b"", b"bc"]
    assert not list((sink.folder / "rounds").iterdir())


def test_a_round_that_is_rolled_back_is_aborted_and_sent_again(sink):
    worker = TestWorker(sink.listen())
    assert worker.round("t1", b"a", commit=False)
    assert worker.round("t2", b"a")
    told = [("prepare", "t1"), ("abort", "t1"), ("prepare", "t2"), ("commit", "t2")]
    assert sink.told == told
    assert sink.delivered == [b"a"]


def test_saying_no_and_raising_are_votes_to_roll_back(sink):
    worker = TestWorker(sink.listen())
    assert not worker.round("t1", b"no")
    assert not worker.round("t2", b"raise")
    assert worker.round("t3", b"yes")
    assert sink.delivered == [b"yes"]


def test_a_round_of_messages_without_bytes_is_delivered_too(sink):
    worker = TestWorker(sink.listen())
    assert worker.round("t1", b"", b"")
    assert worker.round("t2")
    assert worker.round("t3", b"", b"a")
    assert sink.delivered == [b"", b"", b"", b"a"]


def test_rounds_with_gaps_or_wrong_ranges_are_voted_down(sink):
    worker = TestWorker(sink.listen())
    assert worker.round("t0", b"abc")
    at = 3
    for txn, data, start, end in (
        ("gap", [(4, b"x")], 3, 5),
        ("before the committed end", [(3, b"x")], 2, 4),
        ("behind the committed end", [], 500, 500),
        ("beyond what came", [(3, b"x")], 3, 9),
        ("backwards", [(3, b"x")], 3, 2),
    ):
        shift = at - 3
        link = worker.link()
        for offset, payload in data:
            link.send(frames(offset + shift, [payload]), TIMEOUT_S)
        assert not link.vote(txn, start + shift, end + shift, TIMEOUT_S), txn
        link.tell(txn, False, TIMEOUT_S)
        link.close()
        sink = restarted(sink)
        worker.target = TestWorker(sink.listen()).target
        assert worker.round(f"after {txn}", b"d")
        assert sink.delivered == [b"d"]
        at += 1
    sink.close()


def test_an_old_log_whose_votes_against_hold_wrong_ranges_is_read_right(tmp_path):
    """They were written as the worker had asked, and so were the decisions on them."""
    path = tmp_path / "transactions.log"
    log = TransactionLog(path)
    for record in (
        Voted("w", "t1", True, 0, 3),
        Decided("w", "t1", True, 0, 3),
        Done("w", "t1"),
        Voted("w", "t2", False, 500, 500, "the range starts at 500"),
        Decided("w", "t2", False, 500, 500),
        Done("w", "t2"),
        Voted("v", "t3", False, 700, 800, "the range starts at 700"),
        Voted("u", "t4", False, 900, 900, "the range starts at 900"),
        Decided("u", "t4", False, 900, 900),
    ):
        log.append(record)
    for _ in range(2):
        log.close()
        log = TransactionLog(path)
        for worker, committed in (("w", 3), ("v", 0), ("u", 0)):
            workers = Workers(Nothing())
            workers.recover(log.records)
            assert workers.ledger(worker).committed == committed
        log.compact()
    log.close()


def test_an_old_log_that_was_compacted_says_where_a_stream_stands_by_a_roll_back():
    workers = Workers(Nothing())
    workers.recover([Decided("w", "t", False, 500, 510), Done("w", "t")])
    assert workers.ledger("w").committed == 500


def test_a_range_may_end_before_what_was_received(sink):
    worker = TestWorker(sink.listen())
    link = worker.link()
    link.send(frames(0, [b"ab", b"c", b"def"]), TIMEOUT_S)
    assert link.vote("t1", 0, 3, TIMEOUT_S)
    link.tell("t1", True, TIMEOUT_S)
    assert sink.delivered == [b"ab", b"c"]
    assert link.vote("t2", 3, 6, TIMEOUT_S)
    link.tell("t2", True, TIMEOUT_S)
    assert sink.delivered == [b"ab", b"c", b"def"]
    link.close()


def test_a_worker_is_connected_once(sink):
    address = sink.listen()
    first = TestWorker(address, "w").link()
    second = TestWorker(address, "w")
    assert second.refusal() == "worker w is already connected"
    TestWorker(address, "v").link().close()
    first.close()
    second.link().close()


def test_a_wrong_cookie_and_a_wrong_version_are_refused_with_a_reason(tmp_path):
    with Noting(tmp_path, cookie="right", version="0.0.1") as sink:
        worker = TestWorker(sink.listen(), cookie="wrong")
        assert "use '0.0.1'" in worker.refusal()
        worker.hello = Hello("0.0.1", "wrong", "tests", "w")
        assert worker.refusal() == "the cookie is not the right one"
        worker.hello = Hello("0.0.1", "right", "tests", "w")
        worker.link().close()


def test_a_vote_survives_a_restart_and_is_named_to_the_worker(sink):
    worker = TestWorker(sink.listen())
    link = worker.link()
    assert worker.vote(link, "t1", b"a", b"b")
    link.drop()
    with restarted(sink) as again:
        worker.target = TestWorker(again.listen()).target
        worker.decided["t1"] = True
        link = worker.link()
        assert link.named == {"t1"}
        assert again.delivered == [b"a", b"b"]
        assert again.told == [("commit", "t1")]
        link.close()
        worker.offset = 2
        assert worker.round("t2", b"c")
        assert again.delivered == [b"a", b"b", b"c"]


def test_data_that_were_not_voted_on_are_gone_when_the_worker_comes_back(sink):
    worker = TestWorker(sink.listen())
    assert worker.round("t1", b"a")
    link = worker.link()
    link.send(frames(1, [b"lost"]), TIMEOUT_S)
    link.drop()
    assert worker.round("t2", b"b")
    assert sink.delivered == [b"a", b"b"]


def test_a_write_that_failed_half_way_leaves_nothing_behind(tmp_path):
    payloads = [b"%d" % number * 1000 for number in range(10)]
    with small_disk(tmp_path / "disk", 1) as disk, Noting(disk.path / "sink") as sink:
        worker = TestWorker(sink.listen())
        disk.fill(leave_bytes=8192)
        with pytest.raises(SinkUnavailable, match="No space left"):
            worker.vote(worker.link(), "t1", *payloads)
        disk.make_room()
        assert worker.round("t2", *payloads)
        assert sink.delivered == payloads


@pytest.mark.parametrize("reads", [True, False])
def test_a_round_whose_data_are_damaged_is_voted_down(tmp_path, reads):
    class Sink(Noting):
        def prepare(self, txn: Transaction, messages: Round) -> bool:
            return super().prepare(txn, messages) if reads else True

    with Sink(tmp_path) as sink:
        worker = TestWorker(sink.listen())
        link = worker.link()
        link.send(frames(0, [b"a", b"b"]), TIMEOUT_S)
        asked(link)
        (path,) = (tmp_path / "rounds").iterdir()
        damaged = bytearray(path.read_bytes())
        if reads:
            damaged[len(damaged) // 2] = 0xFF  # the second frame's length
        else:
            del damaged[-1:]
        path.write_bytes(damaged)
        assert not link.vote("t1", 0, 2, TIMEOUT_S)
        link.tell("t1", False, TIMEOUT_S)
        link.close()
        assert worker.round("t2", b"a", b"b")
        assert sink.delivered == [b"a", b"b"]


def asked(link: WorkerLink) -> None:
    """Everything that was sent until now has been heard."""
    link.workers_left((), TIMEOUT_S)


@pytest.fixture
def no_vote(monkeypatch):
    """The disk fails whenever a vote is to be logged, until this is called."""
    honest = TransactionLog.append

    def append(log: TransactionLog, record: Record) -> None:
        if isinstance(record, Voted):
            raise OSError("the disk is broken")
        honest(log, record)

    monkeypatch.setattr(TransactionLog, "append", append)
    return monkeypatch.undo


def test_what_was_prepared_and_whose_vote_cannot_be_logged_is_aborted(sink, no_vote):
    worker = TestWorker(sink.listen())
    with pytest.raises(SinkUnavailable, match="the disk is broken"):
        worker.round("t1", b"a")
    assert sink.told == [("prepare", "t1"), ("abort", "t1")]
    no_vote()
    assert worker.round("t2", b"a")
    assert sink.delivered == [b"a"]


@pytest.mark.parametrize("killed", [False, True])
def test_an_abort_that_fails_is_repeated_before_the_worker_may_go_on(sink, no_vote, killed):
    worker = TestWorker(sink.listen())
    sink.broken = True
    with pytest.raises(SinkUnavailable):
        worker.round("t1", b"a")
    no_vote()
    assert "could not be carried out" in worker.refusal_when_gone()
    if killed:
        with restarted(sink) as again:
            again.open()
            assert again.told == [("abort", "t1")]
    else:
        sink.broken = False
        worker.link().close()
        assert sink.told == [("prepare", "t1"), ("abort", "t1")]


def test_a_worker_whose_transaction_is_not_carried_out_does_not_leave(sink):
    address = sink.listen()
    worker, other = TestWorker(address), TestWorker(address, "other")
    link = worker.link()
    assert worker.vote(link, "t1", b"a")
    sink.broken = True
    with pytest.raises(SinkUnavailable):
        link.tell("t1", True, TIMEOUT_S)
    assert "could not be carried out" in worker.refusal_when_gone()
    link = other.link()
    link.workers_left(("w",), TIMEOUT_S)
    assert ("left", "w") not in sink.told
    sink.broken = False
    link.workers_left(("w",), TIMEOUT_S)
    link.close()
    assert sink.told[1:] == [("commit", "t1"), ("left", "w")]
    assert sink.delivered == [b"a"]


def test_messages_without_bytes_that_were_not_voted_on_are_gone_too(sink):
    worker = TestWorker(sink.listen())
    link = worker.link()
    link.send(frames(0, [b"", b""]), TIMEOUT_S)
    link.close()
    assert worker.round("t1", b"", b"")
    assert sink.delivered == [b"", b""]


def test_a_commit_that_fails_is_repeated_before_the_worker_may_go_on(sink):
    worker = TestWorker(sink.listen())
    link = worker.link()
    assert worker.vote(link, "t1", b"a")
    sink.broken = True
    with pytest.raises(SinkUnavailable, match="the destination is down"):
        link.tell("t1", True, TIMEOUT_S)
    assert "could not be carried out" in worker.refusal_when_gone()
    sink.broken = False
    link = worker.link()
    assert link.named == set()
    assert sink.delivered == [b"a"]
    link.close()


def test_a_commit_that_fails_is_repeated_after_a_restart(sink):
    worker = TestWorker(sink.listen())
    link = worker.link()
    assert worker.vote(link, "t1", b"a")
    sink.broken = True
    with pytest.raises(SinkUnavailable):
        link.tell("t1", True, TIMEOUT_S)
    with restarted(sink) as again:
        again.open()
        assert again.delivered == [b"a"]


def test_a_worker_that_left_is_forgotten(sink):
    address = sink.listen()
    old, new = TestWorker(address, "old"), TestWorker(address, "new")
    assert old.round("t1", b"a")
    link = new.link()
    link.workers_left(("old", "never heard of"), TIMEOUT_S)
    link.close()
    assert ("left", "old") in sink.told
    old.offset = 0
    assert old.round("t2", b"b")
    assert sink.delivered == [b"a", b"b"]


def test_a_folder_belongs_to_one_process_at_a_time(sink):
    sink.open()
    with pytest.raises(LogLocked):
        Noting(sink.folder).open()


@pytest.mark.parametrize("action", ["close_before", "close_after"])
def test_a_connection_that_ends_around_the_answer_is_settled_by_the_next(tmp_path, action):
    with Noting(tmp_path, faults=[Fault(action, transaction="t2")]) as sink:
        worker = TestWorker(sink.listen())
        assert worker.round("t1", b"a")
        link = worker.link()
        if action == "close_before":
            with pytest.raises(SinkUnavailable):
                worker.vote(link, "t2", b"b")
        else:
            assert worker.vote(link, "t2", b"b")
        link.drop()
        worker.decided["t2"] = action == "close_after"
        link = worker.link()
        assert link.named == {"t2"}
        link.close()
        assert sink.delivered == ([b"a"] if action == "close_before" else [b"a", b"b"])


def test_fault_rules_strike_by_content_and_by_count(tmp_path):
    rules = [Fault("vote_no", content=b"bad", times=None), Fault("vote_no", skip=1, times=1)]
    with Noting(tmp_path, faults=rules) as sink:
        worker = TestWorker(sink.listen())
        votes = [
            worker.round(f"t{number}", payload)
            for number, payload in enumerate((b"a", b"b", b"so bad", b"c", b"bad"))
        ]
        assert votes == [True, False, False, True, False]
        assert sink.delivered == [b"a", b"c"]


def test_a_sink_may_make_the_connection_itself(sink):
    with socket.create_server(("127.0.0.1", 0)) as relay:
        sink.connect(*relay.getsockname())
        connection, _ = relay.accept()
        with connection:
            said = [text.encode() for text in ("v0.0.1", "", "old", "w")]
            body = b"\0" + b"".join(struct.pack(">H", len(one)) + one for one in said)
            connection.sendall(struct.pack(">I", len(body)) + body)
            assert connection.recv(9) == struct.pack(">IBI", 5, 1, 500)


def test_a_machine_that_vanished_holds_its_worker_for_a_minute_only(sink):
    link = TestWorker(sink.listen()).link()
    (connection,) = sink._connections
    found = [
        connection.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    ]
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert found[0] + found[1] * found[2] == 60
    link.close()


def test_nonsense_is_answered_with_an_error_and_harms_nobody_else(sink):
    address = sink.listen()
    worker = TestWorker(address)
    with socket.create_connection(address) as connection:
        connection.sendall(b"\xff" * 100)
        answer = b""
        while data := connection.recv(1000):
            answer += data
        assert b"over the limit" in answer
    assert worker.round("t1", b"a")
    assert sink.delivered == [b"a"]


def closes(sink: TwoPhaseSink) -> bool:
    closing = threading.Thread(target=sink.close, daemon=True)
    closing.start()
    closing.join(60)
    return not closing.is_alive()


def test_closing_waits_for_no_handshake(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.sdk.two_phase.CONNECTOR_HELLO_TIMEOUT_S", 3600)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    sink = Noting(tmp_path, tls=context)
    with socket.create_connection(sink.listen()) as connection:
        while not any(isinstance(one, ssl.SSLSocket) for one in list(sink._connections)):
            connection.send(b"")
        assert closes(sink)


def test_closing_waits_for_nobody_who_comes_meanwhile(sink):
    begin = sink._begin

    def late(connection: socket.socket) -> None:
        while sink._listening.fileno() >= 0:
            pass
        begin(connection)

    sink._begin = late
    with socket.create_connection(sink.listen()) as connection:
        assert closes(sink)
        assert connection.recv(1) == b""
