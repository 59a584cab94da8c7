"""The bytes of an answer."""

from __future__ import annotations

import time
from email.utils import formatdate
from http import HTTPStatus
from urllib.parse import quote

import orjson

from penstock.edge.http.head import Refused
from penstock.edge.http.request import Opening
from penstock.edge.waiting import Outcome
from penstock.errors import LogFull, NeedsId, OutOfOrder, PenstockError
from penstock.flow.composite import compose
from penstock.flow.receipt import DONE
from penstock.log.interface import Appended
from penstock.message import Batch
from penstock.status import Status

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
BODY_END = '","status":"new"}'
_CLOSE = "connection: close\r\n"
_RETRY = b"retry-after: 1\r\n"
_CODES: dict[type[PenstockError], int] = {LogFull: 507, OutOfOrder: 409, NeedsId: 400}


class Answers:
    """Of one receiver. `tick` once a second: answers say what time it is."""

    def __init__(self, peer: str) -> None:
        self._place = f"/receipts/{peer}/"
        self._peer = peer
        self.tick()

    def tick(self) -> None:
        date = formatdate(time.time(), usegmt=True)
        self._date = f"date: {date}\r\n".encode()
        self.accepted_head = (
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
            f"{self.accepted_head}{name}?at={partition}:{result.offset}\r\n"
            f"content-length: {len(body)}\r\n{_connection(opening, keep)}\r\n{body}"
        ).encode()

    def express(self, stream: str, seq: int, partition: int, offset: int, keep: bool) -> bytes:
        """The same without a batch, for an opening that keeps the connection."""
        body = f'{{"id":"{self._peer}/{stream}/{seq}","status":"new"}}'
        return (
            f"{self.accepted_head}{stream}/{seq}?at={partition}:{offset}\r\n"
            f"content-length: {len(body)}\r\n{'' if keep else _CLOSE}\r\n{body}"
        ).encode()

    def express_end(self, stream: str, seq_digits: int) -> str:
        """What is in that answer after its offset, up to the number in its body."""
        body = f'{{"id":"{self._peer}/{stream}/'
        body_bytes = len(body) + seq_digits + len(BODY_END)
        return f"\r\ncontent-length: {body_bytes}\r\n\r\n{body}"

    def accepted(
        self,
        batches: list[Batch],
        places: list[tuple[int, Appended]],
        opening: Opening,
        keep: bool,
        hint: bytes = b"",
    ) -> bytes:
        """202 for anything that is durable. `places`: the partition and result of each batch."""
        body = {**_described(batches), **_repeats(places)}
        return self.render(202, body, opening, keep, hint=hint + self._location(batches, places))

    def settled(
        self, batches: list[Batch], outcome: Outcome, opening: Opening, keep: bool, hint: bytes
    ) -> bytes:
        """The receipt of one message, or what became of many."""
        body = _described(batches)
        receipts = [receipt for _, receipt in outcome.receipts]
        if "id" in body:
            receipt = receipts[0] if receipts else DONE
            status = receipt.status
            body |= receipt.to_json() | {"id": body["id"]}
        else:
            status = compose(outcome.counts)
            body["status"] = status
            body["statuses"] = {str(one): count for one, count in outcome.counts.items() if count}
            if receipts:
                body["exceptions"] = [receipt.to_json() for receipt in receipts]
        retry = _RETRY if status is Status.THROTTLED else b""
        return self.render(status.http_code, body, opening, keep, hint=hint + retry)

    def late(
        self,
        batches: list[Batch],
        places: list[tuple[int, Appended]],
        opening: Opening,
        keep: bool,
        hint: bytes,
        reason: str,
    ) -> bytes:
        """504: durable, and not settled in time."""
        body = {**_described(batches), "status": Status.TIMED_OUT, "reason": reason}
        hint += self._location(batches, places)
        return self.render(Status.TIMED_OUT.http_code, body, opening, keep, hint=hint)

    def _location(self, batches: list[Batch], places: list[tuple[int, Appended]]) -> bytes:
        if len(batches) != 1 or batches[0].lengths is not None:
            return b""
        batch, (partition, result) = batches[0], places[0]
        place = f"{self._place}{quote(batch.stream, safe='~')}/{batch.seq}"
        at = f"?at={partition}:{result.offset}" if result.offset >= 0 else ""
        return f"location: {place}{at}\r\n".encode()

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
    """One message, or many: of one stream, in order, or events with a name each."""
    if len(batches) == 1 and batches[0].lengths is None:
        return {"id": _name(batches[0], 0), "status": Status.NEW}
    count = sum(batch.count for batch in batches)
    if batches and all(batch.stream == batches[0].stream for batch in batches):
        first, last = _name(batches[0], 0), _name(batches[-1], batches[-1].count - 1)
        return {"first": first, "last": last, "count": count, "status": Status.NEW}
    ids = [_name(batch, 0) for batch in batches]
    return {"count": count, "ids": ids, "status": Status.NEW}


def _repeats(places: list[tuple[int, Appended]]) -> dict[str, object]:
    repeats = sum(result.repeats for _, result in places)
    return {"repeats": repeats} if repeats else {}
