"""`SinkExtension`: what a flow sends, as a stream of values to read.

    sink = SinkExtension(decode, folder="state")
    sink.listen("127.0.0.1", 7200)
    for order in sink:
        ...

Only committed messages are handed out, in the order of their commits. Until they are read they wait on the disk, in
`folder`, and survive a kill of the program; a message counts as read when the next one is asked for, or the sink closed. After
a kill, those that were read last are handed out again: at most `KEPT_READS` of them.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from penstock.connector.frames import Message
from penstock.errors import ConfigError, CorruptLog, PenstockError, ReadTimeout
from penstock.limits import MAX_UNREAD_BYTES
from penstock.sdk.config import VERSION, SinkExtensionConfig
from penstock.sdk.messages import Decoder
from penstock.sdk.rounds import Round, Transaction, read_frames
from penstock.sdk.sink_faults import Fault
from penstock.sdk.transaction_log import sync_folder
from penstock.sdk.two_phase import TwoPhaseSink

KEPT_READS: Final = 1000
"""How often, in messages, the place up to which was read is written down."""


class SinkExtension:
    """`read` is for one thread. Without `folder`, what is not read when the program ends is lost."""

    def __init__(
        self,
        decoder: Decoder | None = None,
        *,
        folder: Path | str | None = None,
        version: str = VERSION,
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
        max_unread_bytes: int = MAX_UNREAD_BYTES,
        faults: Iterable[Fault] = (),
    ) -> None:
        self._decode: Callable[[bytes], Any] = decoder or bytes
        self._temporary = None if folder is not None else tempfile.mkdtemp(prefix="penstock-sink-")
        place = Path(folder if folder is not None else str(self._temporary))
        self._inbox = Inbox(place / "inbox")
        self._sink = _InboxSink(
            place,
            self._inbox,
            max_unread_bytes,
            version=version,
            cookie=cookie,
            tls=tls,
            faults=faults,
        )
        self._address: tuple[str, int] | None = None

    @classmethod
    def of(
        cls, config: SinkExtensionConfig, *, folder: Path | str | None = None, **more: Any
    ) -> Self:
        """The program's end of a described stream; `listen` then needs no address."""
        found = cls(
            config.decoder,
            folder=folder,
            version=config.version,
            cookie=config.cookie,
            tls=config.tls,
            **more,
        )
        found._address = (config.host, config.port)
        return found

    def listen(self, host: str | None = None, port: int | None = None) -> tuple[str, int]:
        """Take connections from now on. The address, with the port that was free if it is 0."""
        if host is None or port is None:
            if self._address is None:
                raise ConfigError("listen needs a host and a port, or a SinkExtensionConfig")
            host, port = self._address
        return self._sink.listen(host, port)

    def connect(self, host: str, port: int, *, timeout_s: float = 10.0) -> None:
        """Make the connection from here, for a worker behind a relay that listens."""
        self._sink.connect(host, port, timeout_s=timeout_s)

    def read(self, timeout: float | None = None) -> Any:
        """The next committed message, decoded. Waits for it; ReadTimeout after `timeout` seconds.

        What the decoder raises is raised here; the next call goes on with the next message.
        """
        return self._decode(self.read_message(timeout).payload or b"")

    def read_message(self, timeout: float | None = None) -> Message:
        """The same, not decoded, with its key and event time."""
        found = self._inbox.next(timeout)
        if found is None:
            raise ReadTimeout(f"no message was committed within {timeout} s")
        return found

    def __iter__(self) -> Iterator[Any]:
        """Until `close`, by another thread."""
        while True:
            try:
                found = self.read_message()
            except PenstockError:
                if self._inbox.closed:
                    return
                raise
            yield self._decode(found.payload or b"")

    def close(self) -> None:
        self._sink.close()
        self._inbox.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _InboxSink(TwoPhaseSink):
    """A round that is committed moves to the inbox as it is: one rename."""

    def __init__(self, folder: Path, inbox: Inbox, max_unread_bytes: int, **more: Any) -> None:
        super().__init__(folder, **more)
        self._inbox = inbox
        self._max_unread_bytes = max_unread_bytes

    def prepare(self, txn: Transaction, messages: Round) -> bool:
        return self._inbox.size_bytes <= self._max_unread_bytes

    @property
    def _stages(self) -> bool:
        return False

    def _committed(self, messages: Round, path: Path) -> None:
        self._inbox.add(path)


class Inbox:
    """Files of committed rounds, in order; and how many messages of the first were read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(path.name for path in folder.iterdir() if path.name.isdigit())
        self._names = names
        cursor = self._load_cursor()
        self._count = 1 + max(int(names[-1]) if names else 0, cursor[0])
        self._changed = threading.Condition()
        self.closed = False
        self._messages: Iterator[Message] | None = None
        self._skip = cursor
        self._read = 0  # of the first file
        self.size_bytes = sum((folder / name).stat().st_size for name in names)

    def add(self, path: Path) -> None:
        """Nothing if it is not there: it was added before."""
        with self._changed:
            name = f"{self._count:020d}"
            with suppress(FileNotFoundError):
                size = path.stat().st_size
                os.rename(path, self._folder / name)
                self._count += 1
                self._names.append(name)
                self.size_bytes += size
                self._changed.notify_all()
        # That it is done with may be durable soon, and then nobody looks for the file any more. Also
        # if it was added before: that may have failed here.
        sync_folder(self._folder)

    def next(self, timeout_s: float | None) -> Message | None:
        """The next message; None if there is none in time. PenstockError once it is closed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if self._messages is None and not self._begin(deadline):
                return None
            assert self._messages is not None
            try:
                message = next(self._messages, None)
            except CorruptLog:
                # Nor is it at its end then: what follows would be deleted unread.
                self._skip, self._messages = (int(self._names[0]), self._read), None
                raise
            if message is None:
                self._finish()
                continue
            self._read += 1
            if self._read % KEPT_READS == 0:
                self._save(int(self._names[0]), self._read - 1)  # this one is not read yet
            return message

    def _begin(self, deadline: float | None) -> bool:
        with self._changed:
            while not self._names:
                if self.closed:
                    raise PenstockError("the sink is closed")
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._changed.wait(left_s)
            name = self._names[0]
        number, skipped = self._skip
        self._read = skipped if number == int(name) else 0
        frames = read_frames(self._folder / name)
        found = (message for batch in frames for message in batch.each())
        self._messages = itertools.islice(found, self._read, None)
        return True

    def _finish(self) -> None:
        with self._changed:
            path = self._folder / self._names.pop(0)
            self._messages = None
            self.size_bytes -= path.stat().st_size
        if not self._names:
            # So that numbers are not used again; and all of it was read, should the file survive this.
            self._save(int(path.name), self._read)
        path.unlink()

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if self._messages is not None:
            self._save(int(self._names[0]), self._read)

    def _save(self, number: int, read: int) -> None:
        path = self._folder / "cursor"
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps([number, read]))
        os.rename(temporary, path)

    def _load_cursor(self) -> tuple[int, int]:
        try:
            number, read = json.loads((self._folder / "cursor").read_text())
            return int(number), int(read)
        except (FileNotFoundError, ValueError):
            return 0, 0
