"""`receiver.connector`, as programs in the field see it."""

from __future__ import annotations

import itertools
import ssl
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from penstock.connector.frames import (
    NO_REFERENCE,
    Ack,
    Eos,
    Error,
    Frame,
    Message,
    Notify,
    NotifyAck,
    Ok,
    Restart,
    encode,
)
from penstock.connector.two_phase import ListUncommitted, encode_payload
from penstock.log import TopicConfig
from tests.edge.conftest import Edge
from tests.edge.extension import Extension

Start = Callable[..., Edge]
BIND = {"bind": "127.0.0.1:0"}
CREDITS = 5000
_ids = itertools.count(1)


@pytest.fixture
def connector(edge: Start) -> Start:
    """An edge of the test's own."""

    def start(**options: object) -> Edge:
        return edge("receiver.connector", BIND | options)

    return start


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """One edge for all tests that need nothing special: starting one takes longer than they do."""
    options = BIND | {"credits": CREDITS, "max_message_bytes": 2000, "max_frame_bytes": 60_000}
    one = Edge(tmp_path_factory.mktemp("edge"), "receiver.connector", options)
    yield one
    one.kill()


@pytest.fixture
def stream() -> int:
    """A stream id that no other test uses."""
    return next(_ids) * 10


def extension(edge: Edge, **more: object) -> Extension:
    program = Extension(edge.host_port, **more)  # type: ignore[arg-type]
    program.greet()
    return program


def failure(program: Extension) -> str:
    """The ERROR that ends the connection, and its end."""
    while not isinstance(answer := program.hear(), Error):
        assert isinstance(answer, Ack), answer
    assert program.hear() is None
    return answer.reason


def rows(edge: Edge, stream: int) -> list[dict[str, Any]]:
    return [row for row in edge.table().to_pylist() if row["stream"] == str(stream)]


def seqs(edge: Edge, stream: int) -> list[int]:
    return [row["seq"] for row in rows(edge, stream)]


def test_messages_are_stored_and_acknowledged(shared: Edge, stream: int) -> None:
    program = Extension(shared.host_port)
    assert program.greet() == Ok(CREDITS)
    assert program.open(stream, b"seven") == NotifyAck(True, stream, NO_REFERENCE)
    program.say(
        Message(stream, 3, 1_700_000_000_000_000_000, b"key", b"payload"),
        Message(stream, 5, 0, None, None),
    )
    program.acked(stream, 5)
    first, second = rows(shared, stream)
    assert (first["peer"], first["seq"]) == ("in", 3)
    assert (first["key"], first["payload"]) == (b"key", b"payload")
    assert first["meta"] == [("stream_name", "seven")]
    assert first["time"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (second["seq"], second["key"], second["payload"]) == (5, None, b"")
    assert (datetime.now(UTC) - second["time"]).total_seconds() < 600


def test_every_credit_comes_back(shared: Edge, stream: int) -> None:
    program = extension(shared)
    program.open(stream)
    for start in range(0, 10_000, 2000):
        ids = range(start, start + 2000)
        program.send(stream, *ids)
        program.acked(stream, ids[-1])
    while program.credits < CREDITS + 1 + 10_000:
        assert isinstance(program.hear(), Ack)
    assert program.credits == CREDITS + 1 + 10_000
    assert seqs(shared, stream) == list(range(10_000))


def test_a_stream_resumes_after_its_point_of_reference(shared: Edge) -> None:
    stream = 2**64 - 1
    first = extension(shared)
    first.open(stream)
    first.send(stream, 10, 20, 30)
    first.acked(stream, 30)
    first.close()
    second = extension(shared)
    while not (answer := second.open(stream)).success:
        pass  # the edge has not yet seen the first one go
    assert answer.point_of_reference == 30
    # An old program may send what it sent before: it is acknowledged, and not stored again.
    second.send(stream, 20, 30, 31, 35)
    second.acked(stream, 35)
    assert seqs(shared, stream) == [10, 20, 30, 31, 35]


def test_a_stream_is_held_by_one_connection_at_a_time(shared: Edge, stream: int) -> None:
    holder, other = extension(shared), extension(shared)
    assert holder.open(stream).success
    assert not other.open(stream).success
    assert other.open(stream + 1).success, "the connection goes on"
    holder.send(stream, 0)
    holder.acked(stream, 0)
    # Programs ask again when they hear an ACK: one comes when the stream is free.
    holder.close()
    while not (answer := other.open(stream)).success:
        assert isinstance(other.hear(), Ack)
    assert answer.point_of_reference == 0
    other.send(stream, 1)
    other.acked(stream, 1)


def test_the_end_of_a_stream_is_answered_and_releases_it(shared: Edge, stream: int) -> None:
    holder, other = extension(shared), extension(shared)
    holder.open(stream)
    holder.send(stream, 4, 8)
    assert holder.end(stream) == 8
    assert other.open(stream) == NotifyAck(True, stream, 8)
    assert other.end(stream) == 8
    assert holder.open(stream).point_of_reference == 8
    holder.open(stream + 1)
    assert holder.end(stream + 1) == NO_REFERENCE
    holder.say(Eos(stream + 1))
    assert f"stream {stream + 1} is closed" in failure(holder)


def test_a_stream_may_end_and_begin_again_without_waiting(shared: Edge, stream: int) -> None:
    program = extension(shared)
    program.open(stream)
    program.say(Message(stream, 1, 0, None, b"x"), Eos(stream), Notify(stream, b"", 0))
    answers = [program.hear() for _ in range(2)]
    while not isinstance(answers[-1], NotifyAck):
        answers.append(program.hear())
    assert answers[-1] == NotifyAck(True, stream, 1)
    program.send(stream, 2)
    program.acked(stream, 2)


def test_messages_that_do_not_rise_are_duplicates(shared: Edge, stream: int) -> None:
    program = extension(shared)
    program.open(stream)
    program.send(stream, 5, 5, 6, 2, 6, 7)
    program.acked(stream, 7)
    assert seqs(shared, stream) == [5, 6, 7]
    while program.credits < CREDITS + 7:
        program.hear()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda s: Message(9, 1, 0, None, b""), "stream 9 is start"),
        (lambda s: Message(0, 0, 0, None, encode_payload(ListUncommitted(1))), "stream 0 is start"),
        (lambda s: Ok(1), "must not send Ok"),
        (lambda s: Message(s, 2**63, 0, None, b""), "a message id is at most"),
        (lambda s: Message(s, 1, 0, bytes(5000), b""), "a key has at most 4096 bytes"),
        (lambda s: Message(s, 1, 0, None, bytes(3000)), "a message has at most 2000 bytes"),
        (lambda s: Message(s, 1, 0, None, bytes(70_000)), "a frame of 70027 bytes is over"),
        (lambda s: Notify(s, b"", 0), "NOTIFY from the sender is not allowed while stream"),
    ],
)
def test_what_is_not_allowed_is_answered_with_the_reason(
    shared: Edge, stream: int, make: Callable[[int], Frame], reason: str
) -> None:
    program = extension(shared)
    program.open(stream)
    program.send(stream, 0)
    program.acked(stream, 0)
    program.say(make(stream))
    assert reason in failure(program)
    again = extension(shared)
    assert again.open(stream).point_of_reference == 0, "nothing that was durable is lost"


def test_an_error_is_heard_even_while_the_program_is_still_sending(
    shared: Edge, stream: int
) -> None:
    program = extension(shared)
    program.open(stream)
    large = Message(stream, 1, 0, None, bytes(1 << 20))
    sending = threading.Thread(target=program.say, args=[large])
    sending.start()
    assert "over the limit" in failure(program)
    sending.join()


def test_many_streams_on_one_connection_each_keep_their_order(shared: Edge) -> None:
    program = extension(shared)
    streams = range(100_000, 100_050)
    for stream in streams:
        program.open(stream)
    for number in range(40):
        program.say(*(Message(stream, number, 0, None, b"x") for stream in streams))
    waiting = dict.fromkeys(streams, -1)
    while any(last < 39 for last in waiting.values()):
        answer = program.hear()
        assert isinstance(answer, Ack)
        for stream, reference in answer.streams:
            assert reference > waiting[stream], "points of reference only rise"
            waiting[stream] = reference
    found = shared.table().to_pylist()
    for stream in streams:
        assert [r["seq"] for r in found if r["stream"] == str(stream)] == list(range(40))


def test_bytes_in_any_pieces(shared: Edge, stream: int) -> None:
    program = Extension(shared.host_port)
    sent = encode(program.hello) + encode(Notify(stream, b"", 0))
    for byte in sent:
        program.sock.sendall(bytes([byte]))
    assert isinstance(program.hear(), Ok)
    assert isinstance(program.hear(), NotifyAck)
    for byte in encode(Message(stream, 1, 0, None, b"slow")):
        program.sock.sendall(bytes([byte]))
    program.acked(stream, 1)
    assert [row["payload"] for row in rows(shared, stream)] == [b"slow"]


# --- With an edge of their own ----------------------------------------------------------------------


def test_the_point_of_reference_survives_a_kill_and_a_stop_and_a_growing_topic(
    connector: Start,
) -> None:
    edge = connector()
    program = extension(edge)
    for stream in range(1, 9):
        program.open(stream)
        program.send(stream, *range(0, 500, 5))
        program.acked(stream, 495)
    edge.kill()
    edge.start()
    program = extension(edge)
    for stream in range(1, 9):
        assert program.open(stream).point_of_reference == 495
        program.send(stream, 500)
        program.acked(stream, 500)
    program.close()
    edge.stop()
    edge.log.create(edge.topic, TopicConfig(partitions=4))
    edge.start()
    program = extension(edge)
    for stream in range(1, 9):
        assert program.open(stream).point_of_reference == 500
        program.send(stream, 501)
        program.acked(stream, 501)
    assert edge.log.reader(edge.topic, 0).end() == 8 * 102, "streams stay on their partition"


def test_version_cookie_and_units_can_be_configured(connector: Start) -> None:
    edge = connector(cookie="tacos", version="0.0.1", event_time="s", max_connections=2)
    for version, cookie in [("v0.0.1", "tacos"), ("0.0.1", ""), ("0.0.1", "taco")]:
        program = Extension(edge.host_port, version=version, cookie=cookie)
        program.say(program.hello)
        failure(program)
        program.close()
    program = extension(edge, cookie="tacos", version="0.0.1")
    program.open(1)
    program.say(Message(1, 1, 1_700_000_000, None, b""), Message(1, 2, 2**63 - 1, None, b""))
    program.acked(1, 2)
    given, absurd = rows(edge, 1)
    assert given["time"] == datetime.fromtimestamp(1_700_000_000, UTC)
    assert (datetime.now(UTC) - absurd["time"]).total_seconds() < 600, "no calendar has that time"
    others = [Extension(edge.host_port) for _ in range(2)]
    assert any("too many connections" in failure(one) for one in others[1:])


def test_stopping_sends_restart_with_the_configured_address(connector: Start) -> None:
    edge = connector(restart_address="127.0.0.1:7999")
    program = extension(edge)
    program.open(1)
    program.send(1, *range(100))
    program.acked(1, 99)
    program.send(1, *range(100, 200))
    stopping = threading.Thread(target=edge.stop)
    stopping.start()
    references = [99]
    while isinstance(answer := program.hear(), Ack):
        references += [reference for _, reference in answer.streams]
    assert answer == Restart("127.0.0.1:7999")
    program.close()
    stopping.join()
    edge.start()
    program = extension(edge)
    durable = program.open(1).point_of_reference
    assert durable >= references[-1]
    assert seqs(edge, 1) == list(range(durable + 1))
    # A program that ignores RESTART does not hold up the stop.
    assert edge.stop() == 0
    while isinstance(answer := program.hear(), Ack):
        pass
    assert answer == Restart("127.0.0.1:7999")


def test_tls_and_the_cookie(connector: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    pem = str(tmp_path / "server.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(pem)
    edge = connector(cookie="tacos", tls={"cert": pem, "key": pem})
    context = ssl.create_default_context()
    authority.configure_trust(context)
    program = extension(edge, cookie="tacos", tls=context)
    program.open(1)
    program.send(1, *range(2000), payload=bytes(1000))
    program.acked(1, 1999)
    program.say(Message(3, 1))
    assert "stream 3" in failure(program)


def test_interceptors_have_no_place_here(edge: Start) -> None:
    with pytest.raises(AssertionError, match="leave `interceptors` out"):
        edge("receiver.connector", BIND, interceptors=[("lines", {})])
