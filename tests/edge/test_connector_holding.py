"""Who holds a stream of `receiver.connector`, where one process cannot be made to do it on cue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.connector.decoder import Decoder
from penstock.connector.frames import Error, Frame, Hello, Message, Notify, NotifyAck, encode
from penstock.edge.connector import ConnectorReceiver
from penstock.edge.connector_connection import ConnectorConnection
from penstock.edge.intake import Intake
from penstock.log import Writer
from penstock.log.interface import Appended
from penstock.peers.connector import ConnectorReceiverOptions


class SlowWriter:
    """Stores nothing before `store` is called."""

    pending_bytes = 0

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.numbers: dict[str, int] = {}

    def last_number(self, producer: str) -> int | None:
        return self.numbers.get(producer)

    def submit_numbers(
        self, rows: Any, producer: str, numbers: list[int], done: Callable[..., None]
    ) -> None:
        def stored() -> None:
            self.numbers[producer] = numbers[-1]
            done(Appended(0, sum(one.num_rows for one in rows)))

        self.waiting.append(stored)

    def store(self) -> None:
        waiting, self.waiting = self.waiting, []
        for stored in waiting:
            stored()


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[object] = []
        self._decoder = Decoder()

    def write(self, data: Any) -> None:
        self.said += self._decoder.feed(data)

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return False


class Program:
    """An extension without a socket."""

    def __init__(self, receiver: ConnectorReceiver) -> None:
        self.transport = Transport()
        self.connection: ConnectorConnection = receiver.connection()
        self.connection.connection_made(self.transport)
        self.say(Hello("v0.0.1", "", "p", "i"))

    def say(self, *frames: Frame) -> None:
        data = b"".join(map(encode, frames))
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))

    @property
    def last(self) -> object:
        return self.transport.said[-1]


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


def test_a_program_that_failed_while_it_waited_for_a_stream_harms_nobody(
    writer: SlowWriter,
) -> None:
    async def scene() -> None:
        options = ConnectorReceiverOptions.model_validate({"bind": "127.0.0.1:0"})
        intake = Intake("in", "t", 1, {0: cast(Writer, writer)}, 1 << 20)
        receiver = ConnectorReceiver(options, intake)
        first, second, third = (Program(receiver) for _ in range(3))
        first.say(Notify(7, b"", 0))
        first.say(Message(7, 1, 0, None, b"x"))
        first.connection.connection_lost(None)
        for program in (
            second,
            third,
        ):  # the stream is neither held nor free: its data are under way
            program.say(Notify(7, b"", 0))
        third.say(Message(8, 1, 0, None, b"x"))
        assert isinstance(third.last, Error)
        writer.store()
        assert second.last == NotifyAck(True, 7, 1)
        assert isinstance(third.last, Error)
        second.say(Message(7, 2, 0, None, b"y"))
        assert len(writer.waiting) == 1

    asyncio.run(scene())
