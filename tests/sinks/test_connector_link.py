"""A worker's connection to sinks that say too much: it ends in time, and says why."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from penstock.config.address import Address
from penstock.connector.frames import Hello
from penstock.sinks.connections import Target
from penstock.sinks.connector_link import WorkerLink
from penstock.sinks.interface import SinkUnavailable

from .old_sink import hear, say, short

Talk = Callable[[socket.socket], None]
HEAD = struct.pack(">QQqH", 0, 0, 0, 0)


@pytest.fixture
def link() -> Iterator[Callable[[Talk], WorkerLink]]:
    """Connects to a sink that says OK, and then talks like this."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve(talk: Talk) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError, EOFError):
            hear(connection)
            say(connection, 1, struct.pack(">I", 500))
            talk(connection)

    def connect(talk: Talk) -> WorkerLink:
        threading.Thread(target=serve, args=[talk], daemon=True).start()
        target = Target("out", Address(*listening.getsockname()), 60.0)
        return WorkerLink(target, Hello("v0.0.1", "", "p", "w"), lambda txn: False, 0.3)

    yield connect
    listening.close()


def named(connection: socket.socket, *transactions: str) -> None:
    """Answer the next LIST_UNCOMMITTED."""
    while (frame := hear(connection))[27:28] != b"\xc9":
        pass
    names = b"".join(map(short, transactions))
    answer = b"\xca" + frame[28:36] + struct.pack(">I", len(transactions)) + names
    say(connection, 5, HEAD + answer)


def test_a_sink_that_names_a_transaction_again_is_not_asked_for_ever(
    link: Callable[[Talk], WorkerLink],
) -> None:
    def talk(connection: socket.socket) -> None:
        while True:
            named(connection, "t")

    with pytest.raises(SinkUnavailable, match="transaction t is named again"):
        link(talk)


def test_a_sink_that_names_ever_new_transactions_has_a_time_for_it(
    link: Callable[[Talk], WorkerLink],
) -> None:
    def talk(connection: socket.socket) -> None:
        number = 0
        while True:
            named(connection, f"t{number}")
            number += 1

    with pytest.raises(SinkUnavailable, match="no answer in time"):
        link(talk)


def test_a_sink_that_says_other_things_has_no_longer(link: Callable[[Talk], WorkerLink]) -> None:
    def talk(connection: socket.socket) -> None:
        named(connection)
        while True:
            say(connection, 6, struct.pack(">II", 1, 0))
            time.sleep(0.01)

    with pytest.raises(SinkUnavailable, match="no answer in time"):
        link(talk)
