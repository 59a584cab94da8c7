"""The bytes of an answer."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import quote

import orjson

from penstock.edge.http.head import Refused
from penstock.edge.http.request import Opening
from penstock.errors import LogFull, OutOfOrder, PenstockError
from penstock.log.interface import Appended
from penstock.message import CONNECTION_STREAM, Batch

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE = "connection: close\r\n"
_RETRY = b"retry-after: 1\r\n"
_CODES: dict[type[PenstockError], int] = {LogFull: 507, OutOfOrder: 409}


class Answers:
    """Of one receiver. `tick` once a second: answers say what time it is."""

    def __init__(self, peer: str) -> None:
        self._place = f"/receipts/{peer}/"
        self._peer = peer
        self.tick()

    def tick(self) -> None:
        date = formatdate(time.time(), usegmt=True)
        self._date = f"date: {date}\r\n".encode()
        self._accepted = (
            f"HTTP/1.1 202 Accepted\r\ndate: {date}\r\ncontent-type: application/json\r\n"
            f"location: {self._place}"
        )

    def one(
        self, batch: Batch, partition: int, result: Appended, opening: Opening, keep: bool
    ) -> bytes:
        """202 for one message of a connection's own stream: the answer that matters for speed."""
        name = f"{batch.stream}/{batch.seq}"  # nothing in it needs escaping, here or in JSON
        body = f'{{"id":"{self._peer}/{name}","status":"new"}}'
        return (
            f"{self._accepted}{name}?at={partition}:{result.offset}\r\n"
            f"content-length: {len(body)}\r\n{_connection(opening, keep)}\r\n{body}"
        ).encode()

    def express(self, stream: str, seq: int, partition: int, offset: int, keep: bool) -> bytes:
        """The same without a batch, for an opening that keeps the connection."""
        body = f'{{"id":"{self._peer}/{stream}/{seq}","status":"new"}}'
        return (
            f"{self._accepted}{stream}/{seq}?at={partition}:{offset}\r\n"
            f"content-length: {len(body)}\r\n{'' if keep else _CLOSE}\r\n{body}"
        ).encode()

    def accepted(
        self,
        batches: list[Batch],
        places: list[tuple[int, Appended]],
        opening: Opening,
        keep: bool,
    ) -> bytes:
        """202 for anything that is durable. `places`: the partition and result of each batch."""
        if len(batches) == 1 and batches[0].lengths is None:
            batch, (partition, result) = batches[0], places[0]
            if batch.stream.startswith(CONNECTION_STREAM):
                return self.one(batch, partition, result, opening, keep)
            body: dict[str, object] = {"id": _name(batch, 0), "status": "new"}
            hint = b"location: %b\r\n" % self.receipt_path(batch, partition, result.offset)
        else:
            body = _described(batches)
            hint = b""
        repeats = sum(result.repeats for _, result in places)
        if repeats:
            body["repeats"] = repeats
        return self.render(202, body, opening, keep, hint=hint)

    def receipt_path(self, batch: Batch, partition: int, offset: int) -> bytes:
        place = f"{self._place}{quote(batch.stream, safe='~')}/{batch.seq}"
        return (f"{place}?at={partition}:{offset}" if offset >= 0 else place).encode()

    def failed(self, error: PenstockError, opening: Opening, keep: bool) -> bytes:
        """What was taken could not be stored."""
        return self.refused(Refused(_CODES.get(type(error), 503), str(error)), opening, keep)

    def refused(self, refusal: Refused, opening: Opening | None, keep: bool) -> bytes:
        """`opening` None: the request was never understood."""
        status = "failed" if refusal.code >= 500 else "invalid"
        return self.render(
            refusal.code,
            {"status": status, "reason": refusal.reason},
            opening,
            keep,
            hint=refusal.hint + (_RETRY if refusal.code in (503, 507) else b""),
        )

    def render(
        self,
        code: int,
        body: dict[str, object],
        opening: Opening | None,
        keep: bool,
        *,
        hint: bytes = b"",
    ) -> bytes:
        content = orjson.dumps(body)
        head = b"".join(
            (
                b"HTTP/1.1 %d %b\r\n" % (code, HTTPStatus(code).phrase.encode()),
                self._date,
                b"content-type: application/json\r\n",
                hint,
                b"content-length: %d\r\n" % len(content),
                _connection(opening, keep).encode(),
                b"\r\n",
            )
        )
        return head if opening is not None and opening.headless else head + content


def _connection(opening: Opening | None, keep: bool) -> str:
    if not keep:
        return _CLOSE
    return "connection: keep-alive\r\n" if opening is not None and opening.old else ""


def _name(batch: Batch, number: int) -> str:
    return f"{batch.peer}/{batch.stream}/{batch.seq + number}"


def _described(batches: list[Batch]) -> dict[str, object]:
    """Many messages: of one stream, in order, or events with a name each."""
    count = sum(batch.count for batch in batches)
    if batches and all(batch.stream == batches[0].stream for batch in batches):
        first, last = _name(batches[0], 0), _name(batches[-1], batches[-1].count - 1)
        return {"first": first, "last": last, "count": count, "status": "new"}
    ids = [_name(batch, 0) for batch in batches]
    return {"count": count, "ids": ids, "status": "new"}
