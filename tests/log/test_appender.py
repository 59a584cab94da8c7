"""Appenders: from any process, whoever owns the partition, and however often that changes."""

from __future__ import annotations

import os
import random
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, LogClosed, LogError, LogLocked, NoSuchTopic, OutOfOrder
from penstock.limits import MAX_APPEND_FRAME_BYTES
from penstock.log import Appended, TopicConfig
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.appends import sockets, wire
from penstock.log.embedded.lock import current_holder
from penstock.log.embedded.rows import split
from penstock.message import Batch
from tests.log.contract import TOPIC, batch, payloads, rows, some_rows
from tests.log.owning import Owner
from tests.supervisor.running import eventually

Start = Callable[..., Owner]


@pytest.fixture
def log(tmp_path: Path) -> EmbeddedLog:
    found = EmbeddedLog(tmp_path)
    found.create(TOPIC, TopicConfig())
    return found


@pytest.fixture
def owner(tmp_path: Path, log: EmbeddedLog) -> Iterator[Start]:
    started: list[Owner] = []

    def start(**more: int) -> Owner:
        started.append(Owner(tmp_path, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.kill()


def holder_socket(data_dir: Path) -> socket.socket:
    holder = current_holder(data_dir / "topics/default/orders.web/0000/lock")
    assert holder is not None
    assert holder.socket is not None
    return sockets.connect(data_dir, holder.socket, 10)


# --- Who owns ---


def test_a_partition_that_nobody_owns_is_taken(log: EmbeddedLog) -> None:
    with log.appender(TOPIC, 0) as appender:
        assert appender.append([batch(b"a")]) == [Appended(0, 1)]
        assert appender.append_rows(some_rows(b"b"), producer="p", number=0) == Appended(1, 1)
    log.writer(TOPIC, 0).close()  # it is free again
    with pytest.raises(LogClosed):
        appender.append([batch(b"c")])


def test_appends_go_to_the_process_that_owns_the_partition(log: EmbeddedLog, owner: Start) -> None:
    owner()
    with log.appender(TOPIC, 0) as appender:
        first = batch(b"a", b"", b"\xff", stream="s", meta={"k": "ü"}, keys=[b"x", None, b""])
        second = batch(b"d", stream="key:1", seq=3)
        assert appender.append([first, second]) == [Appended(0, 3), Appended(3, 1)]
        assert appender.append([first, second]) == [Appended(0, 3, 3), Appended(3, 1, 1)]
        given = some_rows(b"r", b"s", streams=("s", "t"))
        assert appender.append_rows(given, producer="p", number=4) == Appended(4, 2)
        assert appender.append_rows(given, producer="p", number=4) == Appended(4, 2, 2)
        assert appender.append_rows(some_rows(), producer="p", number=5).count == 0
    table = rows(log.reader(TOPIC, 0))
    assert table.column("payload").to_pylist() == [b"a", b"", b"\xff", b"d", b"r", b"s"]
    assert table.column("key").to_pylist()[:4] == [b"x", None, b"", None]
    assert table.column("meta").to_pylist()[:4] == [[("k", "ü")]] * 3 + [[]]
    assert table.column("time").to_pylist()[0].timestamp() * 1e6 == first.time_us
    assert table.slice(4).drop_columns(["offset"]).to_pylist() == given.to_pylist()


def test_large_appends_are_sent_in_pieces(log: EmbeddedLog, owner: Start) -> None:
    owner()
    big = [bytes([i]) * (3 << 20) for i in range(16)]
    with log.appender(TOPIC, 0) as appender:
        batches = [batch(one, stream="s", seq=i) for i, one in enumerate(big)]
        assert appender.append(batches) == [Appended(i, 1) for i in range(16)]
        assert appender.append_rows(some_rows(*big), producer="p", number=0) == Appended(16, 16)
        assert appender.append_rows(some_rows(*big), producer="p", number=0).repeats == 16
    assert payloads(log.reader(TOPIC, 0)) == big * 2


def test_errors_of_the_owner_reach_the_caller_as_they_are(log: EmbeddedLog, owner: Start) -> None:
    owner()
    with log.appender(TOPIC, 0) as appender:
        appender.append([batch(b"a", stream="s", seq=1), batch(b"c", stream="s", seq=3)])
        with pytest.raises(OutOfOrder, match="number 2 comes after 3"):
            appender.append([batch(b"b", stream="s", seq=2)])
        with pytest.raises(LogError, match="over"):
            appender.append([batch(bytes(MAX_APPEND_FRAME_BYTES + 1))])
        with pytest.raises(LogError, match="missing: seq"):
            appender.append_rows(some_rows(b"a").drop_columns(["seq"]), producer="p", number=0)
        assert appender.append([batch(b"d", stream="s", seq=4)]) == [Appended(2, 1)]


def test_what_does_not_exist_is_named(log: EmbeddedLog) -> None:
    with pytest.raises(NoSuchTopic, match="no partition 7"):
        log.appender(TOPIC, 7)


def test_an_owner_that_does_not_serve_is_waited_for(log: EmbeddedLog) -> None:
    writer = log.writer(TOPIC, 0)
    with pytest.raises(LogLocked, match=f"process {os.getpid()} on"):
        log.appender(TOPIC, 0, timeout_s=0.2)
    threading.Timer(0.3, writer.close).start()
    with log.appender(TOPIC, 0, timeout_s=30) as appender:
        assert appender.append([batch(b"a")]) == [Appended(0, 1)]


def test_an_idle_appender_gives_way_to_a_process_that_wants_the_partition(
    log: EmbeddedLog, owner: Start
) -> None:
    with log.appender(TOPIC, 0) as appender:
        appender.append([batch(b"a", stream="s")])
        owner()
        assert appender.append([batch(b"b", stream="s", seq=1)]) == [Appended(1, 1)]


def test_a_busy_appender_gives_way_too_and_comes_back(log: EmbeddedLog, owner: Start) -> None:
    stop = threading.Event()
    stored: list[Appended] = []

    def keep_busy() -> None:
        with log.appender(TOPIC, 0) as busy:
            while not stop.is_set():
                stored.extend(busy.append([batch(b"x", stream="t", seq=len(stored))]))

    thread = threading.Thread(target=keep_busy)
    thread.start()
    try:
        eventually(lambda: len(stored) > 10, "it appends by itself")
        one = owner()
        before = len(stored)
        eventually(lambda: len(stored) > before + 10, "it appends through the owner")
        assert one.stop() == 0
        before = len(stored)
        eventually(lambda: len(stored) > before + 10, "it appends by itself again")
    finally:
        stop.set()
        thread.join()
    assert stored == [Appended(i, 1) for i in range(len(stored))]


def test_two_appenders_take_turns(log: EmbeddedLog) -> None:
    with log.appender(TOPIC, 0) as one, log.appender(TOPIC, 0) as two:
        for i in range(3):
            one.append([batch(b"one %d" % i, stream="one", seq=i)])
            two.append([batch(b"two %d" % i, stream="two", seq=i)])
    assert sorted(payloads(log.reader(TOPIC, 0))) == [
        b"%b %d" % (who, i) for who in (b"one", b"two") for i in range(3)
    ]


# --- Restarts ---


def test_an_appender_survives_the_owner_by_taking_over(log: EmbeddedLog, owner: Start) -> None:
    one = owner()
    with log.appender(TOPIC, 0) as appender:
        appender.append([batch(b"a", stream="s")])
        one.kill()
        assert appender.append([batch(b"b", stream="s", seq=1)]) == [Appended(1, 1)]
        one.start()
        assert appender.append([batch(b"c", stream="s", seq=2)]) == [Appended(2, 1)]
        assert one.stop() == 0
        assert appender.append([batch(b"d", stream="s", seq=3)]) == [Appended(3, 1)]


@pytest.mark.slow
def test_killing_the_owner_again_and_again_loses_and_doubles_nothing(
    log: EmbeddedLog, owner: Start
) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.randrange(1 << 32)))
    print(f"replay with PENSTOCK_TEST_SEED={seed}")
    chance = random.Random(seed)
    one = owner()
    stop = threading.Event()
    sent = {"s": 0, "t": 0, "rows": 0}

    def send(name: str) -> None:
        with log.appender(TOPIC, 0, timeout_s=60) as appender:
            while not stop.is_set():
                at = sent[name]
                if name == "rows":
                    given = some_rows(*(b"rows:%d" % (3 * at + i) for i in range(3)))
                    assert appender.append_rows(given, producer="p", number=at).count == 3
                    sent[name] += 1
                else:
                    some = [b"%b:%d" % (name.encode(), at + i) for i in range(chance.randint(1, 5))]
                    appender.append([batch(*some, stream=name, seq=at)])
                    sent[name] += len(some)

    threads = [threading.Thread(target=send, args=(name,)) for name in sent]
    for thread in threads:
        thread.start()
    try:
        for _ in range(6):
            threading.Event().wait(chance.uniform(0.05, 0.4))
            one.kill()
            one.start()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    found: dict[str, list[int]] = {name: [] for name in sent}
    for payload in payloads(log.reader(TOPIC, 0)):
        name, number = payload.decode().split(":")
        found[name].append(int(number))
    assert found == {
        name: list(range(3 * count if name == "rows" else count)) for name, count in sent.items()
    }
    assert min(sent.values()) > 10


# --- The socket ---


def test_only_the_user_may_connect_and_dead_sockets_are_removed(
    tmp_path: Path, log: EmbeddedLog, owner: Start
) -> None:
    one = owner()
    folder = tmp_path / "sockets"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (before,) = folder.iterdir()
    assert stat.S_IMODE(before.stat().st_mode) == 0o600
    one.kill()
    one.start()
    (after,) = folder.iterdir()
    assert after != before
    assert one.stop() == 0
    assert list(folder.iterdir()) == []


def test_a_data_directory_may_be_deeper_than_a_socket_path_is_long(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["a-rather-long-name-of-a-folder"] * 6)
    deep.mkdir(parents=True)
    assert len(str(deep)) > 108
    log = EmbeddedLog(deep)
    log.create(TOPIC, TopicConfig())
    one = Owner(deep)
    try:
        with log.appender(TOPIC, 0) as appender:
            assert appender.append([batch(b"a")]) == [Appended(0, 1)]
            assert one.process.poll() is None
            assert current_holder(deep / "topics/default/orders.web/0000/lock") is not None
    finally:
        one.kill()


GARBAGE = {
    "noise": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "a frame that is too long": b"PAP1"
    + (MAX_APPEND_FRAME_BYTES + 1).to_bytes(4, "little")
    + bytes(12),
    "a frame of no known kind": b"PAP1" + bytes(4) + bytes([9]) + bytes(11),
    "a request without a head": b"PAP1" + bytes(4) + bytes([1]) + bytes(11),
    "a head that is not JSON": b"PAP1"
    + (8).to_bytes(4, "little")
    + bytes([2])
    + bytes(11)
    + b"\4\0\0\0{{{{",
}


def test_what_is_not_a_request_is_refused_and_harms_nobody(
    tmp_path: Path, log: EmbeddedLog, owner: Start
) -> None:
    owner()
    with log.appender(TOPIC, 0) as appender:
        for number, (what, garbage) in enumerate(GARBAGE.items()):
            with holder_socket(tmp_path) as sock:
                sock.sendall(garbage)
                frames = wire.Frames()
                answered: list[wire.Frame] = []
                while data := sock.recv(65536):
                    answered += frames.feed(data)
            assert [frame.kind for frame in answered] == [wire.REFUSED], what
            assert wire.decode_refusal(answered[0].body)
            assert appender.append([batch(b"a", seq=number)]) == [Appended(number, 1)]


def test_a_partition_of_someone_else_is_not_written(
    tmp_path: Path, log: EmbeddedLog, owner: Start
) -> None:
    owner()
    with holder_socket(tmp_path) as sock:
        for part in wire.encode_batches(7, "orders.web", 1, [batch(b"a")]):
            sock.sendall(part)
        (frame,) = wire.Frames().feed(sock.recv(65536))
    assert frame.number == 7
    (error,) = wire.decode_answer(frame.body)
    assert "not written here" in str(error)


def test_an_owner_that_is_behind_stops_reading_and_serves_on(
    tmp_path: Path, log: EmbeddedLog, owner: Start
) -> None:
    """Its limit is far below what comes: every frame has to wait for the one before it."""
    owner(max_pending_bytes=100)
    count = 300
    with holder_socket(tmp_path) as sock:

        def flood() -> None:
            for i in range(count):
                one = batch(b"x" * 1000, stream="s", seq=i)
                for part in wire.encode_batches(i, "orders.web", 0, [one]):
                    sock.sendall(part)

        thread = threading.Thread(target=flood)
        thread.start()
        frames = wire.Frames()
        numbers: list[int] = []
        while len(numbers) < count:
            numbers += [frame.number for frame in frames.feed(sock.recv(65536))]
        thread.join()
    assert numbers == list(range(count))
    assert log.reader(TOPIC, 0).end() == count


# --- The wire, without a socket ---

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
batches = st.builds(
    lambda peer, stream, seq, bodies, meta, keyed, at: Batch.of(
        peer,
        stream,
        seq,
        bodies,
        meta=meta,
        keys=[body[:3] if i % 2 else None for i, body in enumerate(bodies)] if keyed else None,
        time_us=at,
    ),
    texts,
    texts,
    st.integers(0, 2**62),
    st.lists(st.binary(max_size=50), min_size=1, max_size=5),
    st.dictionaries(texts, texts, max_size=3),
    st.booleans(),
    st.integers(-(2**62), 2**62),
)


def described(one: Batch) -> tuple[object, ...]:
    lengths = [len(one.payload)] if one.lengths is None else one.lengths.tolist()
    meta = bytes(one.meta)
    return one.peer, one.stream, one.seq, bytes(one.payload), lengths, meta, one.keys, one.time_us


@given(st.lists(batches, min_size=1, max_size=4), st.lists(st.integers(1, 60), max_size=20))
def test_batches_come_through_whole_however_the_bytes_are_cut(
    given_batches: list[Batch], cuts: list[int]
) -> None:
    data = b"".join(wire.encode_batches(1, "t", 0, given_batches)) * 2
    frames, found = wire.Frames(), []
    for size in [*cuts, len(data)]:
        found += frames.feed(data[:size])
        data = data[size:]
    assert [frame.number for frame in found] == [1, 1]
    for frame in found:
        request = wire.decode_batches(frame.body)
        assert (request.topic, request.partition) == ("t", 0)
        assert [described(one) for one in request.batches] == [described(b) for b in given_batches]


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.booleans())
def test_any_damage_to_a_request_is_refused_or_harmless(data: st.DataObject, as_rows: bool) -> None:
    """It never gets past the decoder as anything but a well-formed request."""
    if as_rows:
        (part,) = split(some_rows(b"abc", b"d"), "p", 1)
        whole = b"".join(wire.encode_rows(1, "t", 0, part))[20:]
    else:
        one = batch(b"abc", b"d", stream="s", keys=[b"k", None], meta={"a": "b"})
        whole = b"".join(wire.encode_batches(1, "t", 0, [one]))[20:]
    body = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(body)))
    damaged = memoryview(bytes(body[:cut] if data.draw(st.booleans()) else body))
    try:
        if as_rows:
            found = wire.decode_rows(damaged).part
            assert found.rows.num_rows > 0
            found.rows.validate(full=True)
        else:
            for item in wire.decode_batches(damaged).batches:
                assert item.lengths is not None
                assert int(item.lengths.sum()) == len(item.payload)
                assert item.keys is None or len(item.keys) == item.count
    except InvalidMessage:
        pass
