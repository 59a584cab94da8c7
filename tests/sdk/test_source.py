"""Sources of the SDK against a real edge process."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.connector.columns import Messages
from penstock.connector.receiving import ReceivingConnection
from penstock.errors import InvalidMessage, PenstockError, ProtocolError, TooLarge, Unavailable
from penstock.limits import SDK_REFUSALS, SDK_REFUSED_S
from penstock.sdk import Outgoing, SourceExtension, SourceExtensionConfig, aio, message_encoder
from penstock.sdk.sender import Refusals
from tests.edge.conftest import Edge
from tests.sdk.receiver import TestReceiver
from tools.services import free_port


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    options = {"bind": "127.0.0.1:0", "credits": 70, "max_message_bytes": 100_000}
    one = Edge(tmp_path_factory.mktemp("edge"), "receiver.connector", options)
    yield one
    one.kill()
    assert "Traceback" not in one.log_path.read_text()


def rows(edge: Edge, name: str) -> list[dict[str, Any]]:
    found = edge.table().to_pylist()
    return [row for row in found if name in (row["stream"], dict(row["meta"]).get("stream_name"))]


@message_encoder
def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


def test_what_is_written_is_stored_once_close_returns(edge: Edge) -> None:
    with SourceExtension(encode).connect(*edge.host_port) as source:
        assert source.point_of_reference("till") is None
        assert source.write({"n": 1}, partition="till")
        assert source.write({"n": 2}, partition="till", sequence=40)
        assert not source.write({"n": 3}, partition="till", sequence=40)
        assert source.write({"n": 4}, partition="till")
        assert source.write_many([5, 6], partition=4711, sequences=[7, 9]) == 2
        source.write(0)
    assert [(row["seq"], row["payload"]) for row in rows(edge, "till")] == [
        (0, b'{"n": 1}'),
        (40, b'{"n": 2}'),
        (41, b'{"n": 4}'),
    ]
    assert [row["seq"] for row in rows(edge, "4711")] == [7, 9]
    assert [row["seq"] for row in rows(edge, "penstock.sdk")] == [0]
    with pytest.raises(Unavailable, match="not connected"):
        source.write(1)


def test_a_program_that_starts_again_goes_on_where_penstock_is(edge: Edge) -> None:
    lines = [b"line %d" % number for number in range(500)]
    for upto in (200, 500):
        with SourceExtension().connect(*edge.host_port) as source:
            source.write_many(lines[:upto], partition="file", sequences=range(upto))
            source.flush()
            assert source.unacknowledged == 0
            assert source.acknowledged("file") == upto - 1
    with SourceExtension().connect(*edge.host_port) as source:
        assert source.point_of_reference("file") == 499
        assert source.write(b"the next number is chosen by the SDK", partition="file")
    found = rows(edge, "file")
    assert [row["payload"] for row in found[:-1]] == lines
    assert found[-1]["seq"] == 500


def test_keys_and_times_travel_and_many_go_through_few_credits(edge: Edge) -> None:
    with SourceExtension().connect(*edge.host_port) as source:
        messages: list[bytes | Outgoing] = [b"plain %d" % number for number in range(3000)]
        messages[7] = Outgoing(b"with", key=b"k", event_time=1_700_000_000_000_000_000)
        source.write_many(messages, partition="keyed")
        for number in range(300):
            source.write(b"%d" % number, partition="keyed")
    found = rows(edge, "keyed")
    assert len(found) == 3300
    assert [row["seq"] for row in found] == list(range(3300))
    assert (found[7]["payload"], found[7]["key"], found[7]["time"].year) == (b"with", b"k", 2023)
    assert found[8]["key"] is None


def test_a_stream_that_another_program_holds_is_waited_for(edge: Edge) -> None:
    first = SourceExtension().connect(*edge.host_port)
    first.write(b"first", partition="held")
    second = SourceExtension().connect(*edge.host_port)
    writing = threading.Thread(target=second.write, args=[b"second", "held"])
    writing.start()
    writing.join(0.2)
    assert writing.is_alive()
    first.close()
    writing.join(30)
    second.close()
    assert [row["payload"] for row in rows(edge, "held")] == [b"first", b"second"]


def test_streams_share_the_credits_however_busy_one_is() -> None:
    written = threading.Event()

    def hear(connection: ReceivingConnection, event: object) -> None:
        if isinstance(event, Messages):
            written.wait(60)

    receiver = TestReceiver(100, hear)
    source = SourceExtension().connect(*receiver.address)
    for partition in (1, 2, 3):
        source.point_of_reference(partition)
    source.write_many([b""] * 100_000, 1)
    for partition in (2, 3):
        source.write_many([b""] * 2000, partition)
    written.set()
    source.flush(60)
    source.abort()
    receiver.close()
    came = [stream for stream, _ in receiver.came]
    for partition in (2, 3):
        end = len(came) - came[::-1].index(partition)
        assert came[:end].count(1) < 10_000
    assert [number for stream, number in receiver.came if stream == 1] == list(range(100_000))


def test_a_stream_may_be_opened_by_several_writers_at_once(edge: Edge) -> None:
    with SourceExtension().connect(*edge.host_port) as source:
        ready = threading.Barrier(4)

        def write() -> None:
            ready.wait()
            source.write(b"from a thread", partition="threads")

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def program() -> None:
        async with await aio.SourceExtension().connect(*edge.host_port) as source:
            assert all(await asyncio.gather(*(source.write(b"x", "tasks") for _ in range(4))))

    asyncio.run(program())
    assert [row["seq"] for row in rows(edge, "threads")] == [0, 1, 2, 3]
    assert [row["seq"] for row in rows(edge, "tasks")] == [0, 1, 2, 3]


def test_a_second_connect_is_refused_and_harms_nothing(edge: Edge) -> None:
    before = threading.active_count()
    with SourceExtension().connect(*edge.host_port) as source:
        source.write(b"one", partition="twice")
        with pytest.raises(PenstockError, match="connected already"):
            source.connect(*edge.host_port)
        source.write(b"two", partition="twice")
    assert threading.active_count() == before
    assert [row["payload"] for row in rows(edge, "twice")] == [b"one", b"two"]


def test_mistakes_are_told_where_they_are_made(edge: Edge) -> None:
    with pytest.raises(ProtocolError, match="refuses: the cookie is not the right one"):
        SourceExtension(cookie="wrong").connect(*edge.host_port)
    with pytest.raises(
        Unavailable, match=r"127.0.0.1:\d+ did not answer in 0.2 s: .*Connect call failed"
    ):
        SourceExtension().connect("127.0.0.1", free_port(), timeout_s=0.2)
    with SourceExtension().connect(*edge.host_port) as source:
        with pytest.raises(InvalidMessage, match="a message is bytes, not str"):
            source.write("text")
        with pytest.raises(InvalidMessage, match="a sequence number is 0 to"):
            source.write(b"", sequence=-1)
        with pytest.raises(InvalidMessage, match="must rise"):
            source.write_many([b"", b""], sequences=[2, 1])
        with pytest.raises(InvalidMessage, match="2 messages and 1 sequence numbers"):
            source.write_many([b"", b""], sequences=[2])
        with pytest.raises(InvalidMessage, match="partition 0"):
            source.write(b"", partition=0)
        with pytest.raises(TooLarge):
            source.write(bytes(17 << 20))
        with pytest.raises(TooLarge):
            source.write_many([bytes(17 << 20)])


def test_what_penstock_never_takes_ends_the_extension_with_its_reason(
    edge: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sdk.sender.SDK_REFUSED_S", 0.0)
    source = SourceExtension().connect(*edge.host_port)
    source.write(b"good", partition="poisoned")
    source.write(bytes(200_000), partition="poisoned")
    with pytest.raises(ProtocolError, match="a message has at most 100000 bytes"):
        source.flush(60)
    with pytest.raises(ProtocolError, match="a message has at most 100000 bytes"):
        source.close()
    assert [row["payload"] for row in rows(edge, "poisoned")] == [b"good"]


def test_what_is_refused_for_a_while_is_sent_again() -> None:
    refusals = 4

    def hear(connection: ReceivingConnection, event: object) -> None:
        nonlocal refusals
        if isinstance(event, Messages) and refusals:
            refusals -= 1
            connection.fail("the log is behind; try again")

    receiver = TestReceiver(100, hear)
    with SourceExtension().connect(*receiver.address) as source:
        source.write(b"a", partition=1)
        source.flush(60)
    receiver.close()
    assert receiver.came == [(1, 0)]
    assert receiver.connections == 5


def test_a_refusal_is_for_good_when_it_comes_often_enough_for_long_enough() -> None:
    now = 0.0
    refusals = Refusals(lambda: now)
    often = [refusals.again("no") for _ in range(SDK_REFUSALS + 3)]
    now += SDK_REFUSED_S
    assert not any(often)
    assert not refusals.again("no, because")
    assert not refusals.again("no")
    now += SDK_REFUSED_S
    assert [refusals.again("no") for _ in range(SDK_REFUSALS - 1)] == [False, False, False, True]
    refusals.over()
    assert not refusals.again("no")


def test_asyncio_has_the_same(edge: Edge) -> None:
    async def program() -> None:
        config = SourceExtensionConfig(
            name="async", host=edge.host_port[0], port=edge.host_port[1], encoder=encode
        )
        async with await aio.SourceExtension.of(config).connect() as source:
            assert await source.point_of_reference() is None
            for number in range(200):
                await source.write(number)
            await source.write_many(range(200, 1000))
            await source.flush()
            assert source.acknowledged() == 999
            assert not await source.write(1, sequence=5)

    asyncio.run(program())
    assert [row["payload"] for row in rows(edge, "async")] == [b"%d" % n for n in range(1000)]


def test_asyncio_goes_on_while_a_source_is_fed(edge: Edge) -> None:
    """Whether the source waits or never does: other tasks have their turns, and what it gave is sent meanwhile."""

    class Slow:
        def reset(self, point_of_reference: int | None) -> None: ...

        def __iter__(self) -> Iterator[tuple[int, bytes]]:
            yield 0, b"first"
            assert stored.wait(60), "the loop stands still"
            yield 1, b"second"

    class Endless:
        def reset(self, point_of_reference: int | None) -> None: ...

        def __iter__(self) -> Iterator[tuple[int, bytes]]:
            yield from ((number, b"") for number in itertools.takewhile(go_on, itertools.count()))

    stored, enough = threading.Event(), False

    def go_on(number: int) -> bool:
        return not enough and number < 3_000_000

    async def program() -> None:
        nonlocal enough
        async with await aio.SourceExtension().connect(*edge.host_port) as source:
            feeding = asyncio.create_task(source.feed(Slow(), "slow"))
            while source.acknowledged("slow") != 0:  # noqa: ASYNC110
                await asyncio.sleep(0)
            stored.set()
            assert await feeding == 2
            feeding = asyncio.create_task(source.feed(Endless(), "endless"))
            while source.acknowledged("endless") is None:  # noqa: ASYNC110
                await asyncio.sleep(0)
            enough = True
            assert await feeding < 3_000_000

    class Broken:
        def reset(self, point_of_reference: int | None) -> None: ...

        def __iter__(self) -> Iterator[tuple[int, bytes]]:
            yield 0, b"before"
            raise OSError("the disk is broken")

    async def broken() -> None:
        async with await aio.SourceExtension().connect(*edge.host_port) as source:
            with pytest.raises(OSError, match="broken"):
                await source.feed(Broken(), "broken")

    asyncio.run(program())
    asyncio.run(broken())
    assert [row["payload"] for row in rows(edge, "broken")] == [b"before"]
    assert [row["payload"] for row in rows(edge, "slow")] == [b"first", b"second"]


def test_nothing_is_lost_or_doubled_while_the_edge_dies_moves_and_comes_back(
    tmp_path: Path,
) -> None:
    """Killed in the middle, stopped in the middle with RESTART to another address, all under load."""
    authority = trustme.CA()
    pem = str(tmp_path / "server.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(pem)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    ports = [free_port(), free_port()]
    common = {"cookie": "tacos", "tls": {"cert": pem, "key": pem}, "credits": 500}
    edges = [
        Edge(
            tmp_path / str(port),
            "receiver.connector",
            common | {"bind": f"127.0.0.1:{port}", "restart_address": f"127.0.0.1:{ports[1]}"},
        )
        for port in ports
    ]
    first, second = edges
    source = SourceExtension(cookie="tacos", tls=context, max_waiting_bytes=20_000)
    source.connect("127.0.0.1", ports[0])
    enough, count = threading.Event(), 0

    def write_all() -> None:
        nonlocal count
        while not enough.is_set():
            source.write(b"%d" % count, partition=1)
            source.write_many([b"%d" % (count + n) for n in range(1, 50)], partition=1)
            count += 50
        source.close(60)

    writing = threading.Thread(target=write_all)
    writing.start()
    for _ in range(2):
        assert more(first)
        first.kill()
        first.start()
    assert more(first)
    assert first.stop() == 0
    assert more(second)
    enough.set()
    writing.join(90)
    assert not writing.is_alive()
    stored = [seq for edge in edges for seq in edge.table()["seq"].to_pylist()]
    assert stored == list(range(count)), "in order and once, over both"
    second.kill()


def test_asyncio_resumes_too_while_the_edge_is_killed(tmp_path: Path) -> None:
    options = {"bind": f"127.0.0.1:{free_port()}", "credits": 100}
    one = Edge(tmp_path, "receiver.connector", options)

    def trouble() -> None:
        for _ in range(3):
            assert more(one)
            one.kill()
            one.start()
        assert more(one)

    async def program() -> int:
        source = aio.SourceExtension(max_waiting_bytes=20_000)
        await source.connect(*one.host_port)
        troubles, count = asyncio.create_task(asyncio.to_thread(trouble)), 0
        while not troubles.done():
            await source.write(b"%d" % count, partition=1)
            await source.write_many([b"%d" % (count + n) for n in range(1, 50)], partition=1)
            count += 50
            await asyncio.sleep(0)
        await troubles
        await source.close(60)
        return count

    count = asyncio.run(program())
    assert one.payloads() == [b"%d" % number for number in range(count)]
    one.kill()


def more(edge: Edge) -> bool:
    reader = edge.log.reader(edge.topic, 0)
    return reader.wait(reader.end() + 200, 30)
