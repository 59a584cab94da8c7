"""`SourceExtension`: a program that sends messages to Penstock's `receiver.connector`.

    with SourceExtension(encode).connect("127.0.0.1", 7100) as orders:
        for sequence, order in read_from(orders.point_of_reference("till-7")):
            orders.write(order, partition="till-7", sequence=sequence)

A partition is a stream: its messages stay in order, and each has a sequence number that rises. What is written is
sent soon, many at a time; kept until it is acknowledged; and sent again over a new connection if the old one is
lost. So every message is stored once, whatever happens to Penstock or the network. What it takes to have that when
*this program* dies too is said at `point_of_reference`.

The connection lives on a thread of its own. `penstock.sdk.aio` has the same for asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Self, TypeVar

from penstock.connector.frames import Hello
from penstock.errors import InvalidMessage, PenstockError, Unavailable
from penstock.flow.backoff import Backoff
from penstock.limits import SDK_WAITING_BYTES
from penstock.sdk.config import VERSION, SourceExtensionConfig
from penstock.sdk.messages import Encoder, Outgoing
from penstock.sdk.outbox import Outbox, OutStream
from penstock.sdk.packs import MAX_MESSAGE_ID, id_array
from penstock.sdk.sender import Sender, Target
from penstock.sdk.sources import ReplayableSource

Partition = int | str | None
Result = TypeVar("Result")

CONNECT_TIMEOUT_S = 30.0
LAST_WORDS_S = 10.0  # for what was written before an exception


def _connected_already() -> PenstockError:
    return PenstockError("this extension is connected already; it connects again by itself")


class SourceBase:
    """What the blocking and the asyncio source have in common: everything but waiting."""

    def __init__(
        self,
        encoder: Encoder | None = None,
        *,
        program: str = "penstock.sdk",
        instance: str | None = None,
        version: str = VERSION,
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
        max_waiting_bytes: int = SDK_WAITING_BYTES,
    ) -> None:
        """`program` also names the stream of what is written without a partition."""
        self._encoder = encoder
        self._program = program
        name = instance or f"{socket.gethostname()}-{os.getpid()}"
        self._hello = Hello(version, cookie, program, name)
        self._tls = tls
        self._max_waiting_bytes = max_waiting_bytes
        self._outbox = Outbox()
        self._streams: dict[Partition, OutStream] = {}
        self._sender: Sender | None = None
        self._address: tuple[str, int] | None = None

    @classmethod
    def of(cls, config: SourceExtensionConfig) -> Self:
        """The program's half of a stream; `connect()` then needs no address."""
        made = cls(
            config.encoder,
            program=config.name,
            version=config.version,
            cookie=config.cookie,
            tls=config.tls,
        )
        made._address = (config.host, config.port)
        return made

    @property
    def unacknowledged(self) -> int:
        """Messages that were written and are not known to be durable."""
        return self._outbox.waiting_messages

    def acknowledged(self, partition: Partition = None) -> int | None:
        """The last sequence number of the partition that is known to be durable."""
        stream = self._streams.get(partition)
        return None if stream is None or stream.durable < 0 else stream.durable

    def _make_sender(self, host: str | None, port: int | None) -> Sender:
        if self._sender is not None:
            raise _connected_already()
        if host is not None and port is not None:
            self._address = (host, port)
        if self._address is None:
            raise PenstockError("connect(host, port): the address of a receiver.connector")
        target = Target(*self._address, self._hello, self._tls)
        self._sender = Sender(target, self._outbox, Backoff())
        return self._sender

    def _connected(self) -> Sender:
        sender = self._sender
        if sender is None:
            raise Unavailable("the extension is not connected: call connect(host, port) first")
        if sender.failure is not None:
            raise sender.failure
        return sender

    def _stream_of(self, partition: Partition) -> OutStream:
        if isinstance(partition, int):
            if not 0 < partition < 2**64:
                raise InvalidMessage(f"partition {partition}: a number is 1 to 2^64 - 1")
            return self._outbox.stream(partition, str(partition).encode())
        name = (self._program if partition is None else partition).encode()
        digest = blake2b(name, digest_size=8).digest()
        return self._outbox.stream(int.from_bytes(digest, "big") or 1, name)

    def _encoded(self, message: Any) -> bytes | Outgoing:
        found = message if self._encoder is None else self._encoder(message)
        if isinstance(found, bytes | Outgoing):
            return found
        if isinstance(found, bytearray | memoryview):
            return bytes(found)
        raise InvalidMessage(f"a message is bytes, not {type(found).__name__}: give an encoder")

    def _add(self, stream: OutStream, message: Any, sequence: int | None) -> bool:
        if sequence is not None and not 0 <= sequence <= MAX_MESSAGE_ID:
            raise InvalidMessage(f"a sequence number is 0 to {MAX_MESSAGE_ID}, not {sequence}")
        return self._outbox.add(stream, self._encoded(message), sequence)

    def _add_many(
        self, stream: OutStream, messages: Iterable[Any], sequences: Sequence[int] | None
    ) -> int:
        if self._encoder is None and isinstance(messages, list):
            encoded = messages if set(map(type, messages)) <= {bytes, Outgoing} else None
        else:
            encoded = None
        if encoded is None:
            encoded = [self._encoded(message) for message in messages]
        ids = None if sequences is None else id_array(sequences)
        if ids is not None and len(ids) != len(encoded):
            raise InvalidMessage(f"{len(encoded)} messages and {len(ids)} sequence numbers")
        return self._outbox.add_many(stream, encoded, ids)

    @property
    def _full(self) -> bool:
        return self._outbox.waiting_bytes > self._max_waiting_bytes


class SourceExtension(SourceBase):
    """The blocking source. Its methods may be called from any thread."""

    _loop: asyncio.AbstractEventLoop
    _thread: threading.Thread | None = None
    _awake = False

    def connect(
        self,
        host: str | None = None,
        port: int | None = None,
        timeout_s: float | None = CONNECT_TIMEOUT_S,
    ) -> Self:
        """Connect and shake hands. Tries again until the time is over; a refusal is raised at once."""
        if self._thread is not None:
            raise _connected_already()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="penstock source", daemon=True)
        self._thread.start()
        try:
            sender = self._run(self._started(host, port))
            self._run(sender.connected(timeout_s))
        except BaseException:
            self.abort()
            raise
        return self

    def write(self, message: Any, partition: Partition = None, sequence: int | None = None) -> bool:
        """Send one message. False if its sequence number is not above the partition's last one: it was
        written before, perhaps by an earlier life of this program.

        Without `sequence` the message gets the next number. Returns before it is durable; waits only
        while too much is unacknowledged.
        """
        sender = self._connected()
        stream = self._streams.get(partition) or self._open(partition)
        fresh = self._add(stream, message, sequence)
        self._sent_soon(sender)
        return fresh

    def write_many(
        self,
        messages: Iterable[Any],
        partition: Partition = None,
        sequences: Sequence[int] | None = None,
    ) -> int:
        """The same for many, much faster than one by one. Says how many had not been written before."""
        sender = self._connected()
        stream = self._streams.get(partition) or self._open(partition)
        fresh = self._add_many(stream, messages, sequences)
        self._sent_soon(sender)
        return fresh

    def point_of_reference(self, partition: Partition = None) -> int | None:
        """The last sequence number of a partition that Penstock had when it was opened; None if it has none.

        A program that can read its input again from there, and numbers it the same way every time, loses
        nothing and doubles nothing when it dies. One that cannot loses what was not acknowledged.
        """
        self._connected()
        stream = self._streams.get(partition) or self._open(partition)
        return None if stream.durable < 0 else stream.durable

    def feed(self, source: ReplayableSource, partition: Partition = None) -> int:
        """Write all that a replayable source has, from where Penstock is. Says how many that were."""
        source.reset(self.point_of_reference(partition))
        return sum(self.write(message, partition, number) for number, message in source)

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until everything that was written is durable."""
        self._run(self._connected().settled(timeout_s))

    def close(self, timeout_s: float | None = None) -> None:
        """Wait for the last acknowledgement, then go. Raises if it does not come in time."""
        sender = self._sender
        try:
            if sender is not None and self._thread is not None:
                self._run(sender.close(timeout_s))
        finally:
            self._end_thread()

    def abort(self) -> None:
        """Go at once. What was not acknowledged may be lost."""
        sender = self._sender
        if sender is not None and self._thread is not None:
            self._run(sender.abort())
        self._end_thread()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None:
            self.close()
        else:
            with contextlib.suppress(PenstockError):
                self.close(LAST_WORDS_S)

    # --- The thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _started(self, host: str | None, port: int | None) -> Sender:
        return self._make_sender(host, port)

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _open(self, partition: Partition) -> OutStream:
        stream = self._stream_of(partition)
        self._run(self._connected().open(stream, None))
        self._streams[partition] = stream
        return stream

    def _sent_soon(self, sender: Sender) -> None:
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._wake)
        if self._full:
            self._run(sender.until(lambda: not self._full, None, "no room"))

    def _wake(self) -> None:
        self._awake = False
        if self._sender is not None:
            self._sender.wake()

    def _end_thread(self) -> None:
        self._sender = None
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
