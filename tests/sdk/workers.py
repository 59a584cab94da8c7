"""A worker that a sink is tested with."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.config.address import Address
from penstock.connector.frames import Hello, Message, encode
from penstock.connector.worker import Worker
from penstock.sdk.config import VERSION
from penstock.sinks.connections import Target
from penstock.sinks.connector_link import WorkerLink

TIMEOUT_S = 60.0


def frames(start: int, payloads: Iterable[bytes]) -> bytes:
    """Data frames whose ids are offsets from `start` on."""
    out = []
    for payload in payloads:
        out.append(encode(Message(1, start, 7, b"key", payload)))
        start += len(payload)
    return b"".join(out)


class TestWorker:
    """One worker, which remembers where its stream stands; a new connection for each call of `link`."""

    __test__ = False

    def __init__(self, address: tuple[str, int], name: str = "w", cookie: str = "") -> None:
        self.target = Target("sink", Address(*address), 5.0)
        self.hello = Hello(VERSION, cookie, "tests", name)
        self.offset = 0
        self.decided: dict[str, bool] = {}

    def link(self, timeout_s: float = TIMEOUT_S) -> WorkerLink:
        return WorkerLink(
            self.target, self.hello, lambda txn: self.decided.get(txn, False), timeout_s
        )

    def refusal(self) -> str:
        """Why the sink does not let this worker in."""
        with self.target.connect() as connection:
            connection.settimeout(TIMEOUT_S)
            worker = Worker(self.hello)
            connection.sendall(b"".join(map(bytes, worker.connection.take())))
            while worker.failed is None:
                data = connection.recv(1000)
                assert data, "the sink has closed the connection without a word"
                worker.receive(data)
        return worker.failed.reason

    def refusal_when_gone(self) -> str:
        """The same, once the sink has seen that this worker's last connection is gone."""
        while "already connected" in (reason := self.refusal()):
            pass
        return reason

    def vote(self, link: WorkerLink, txn: str, *payloads: bytes) -> bool:
        link.send(frames(self.offset, payloads), TIMEOUT_S)
        return link.vote(txn, self.offset, self.offset + sum(map(len, payloads)), TIMEOUT_S)

    def round(self, txn: str, *payloads: bytes, commit: bool = True) -> bool:
        """A whole round, over a connection of its own; the vote."""
        link = self.link()
        vote = self.vote(link, txn, *payloads)
        self.decided[txn] = commit and vote
        link.tell(txn, commit and vote, TIMEOUT_S)
        if commit and vote:
            self.offset += sum(map(len, payloads))
        link.close()
        return vote
