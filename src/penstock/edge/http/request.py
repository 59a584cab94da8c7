"""What a receiver makes of a request, decided from its head alone. No I/O.

The same head always means the same to the same receiver: `Gate.open` is a function of its bytes.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote_to_bytes

from penstock.edge.http.head import CHUNKED, Head, Refused, parse_head
from penstock.errors import InvalidMessage
from penstock.limits import MAX_KNOWN_HEAD_BYTES, MAX_QUERY_FIELDS, MAX_STREAM_NAME_BYTES
from penstock.message import KEY_STREAM, OWN_META, EventId, check_sender_stream, encode_meta
from penstock.peers import cloudevents
from penstock.peers.http import HttpReceiverOptions

STREAM_HEADER = b"penstock-stream"
SEQUENCE_HEADER = b"penstock-sequence"
Framing = Literal["one", "lines", "length_prefixed", "event", "events"]
_LINES = {b"application/x-ndjson", b"application/ndjson", b"application/jsonl"}
_RECEIPTS = b"/receipts/"
_SYNC = {None: False, "": True, "1": True, "true": True, "0": False, "false": False}
_APPLIED = b"preference-applied: %b\r\n"
_MAX_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a sender waits for its receipt, and what it is told if there is none by then."""

    seconds: float
    sync: bool  # then 504; otherwise 202, as to those who do not wait


@dataclass(frozen=True, slots=True)
class Ask:
    """A receipt to find."""

    event: EventId
    at: tuple[int, int] | None  # the partition and offset of the message


@dataclass(frozen=True, slots=True)
class Post:
    """Messages to take. `event` and `events` are CloudEvents whose attributes are in the body."""

    framing: Framing
    meta: dict[str, str]
    encoded_meta: bytes
    stream: str | None  # chosen by the sender; None: the connection's own
    seq: int
    single: bool  # whatever the interceptors make of the body, it must be one message
    patience: Patience | None = None  # None: durable is enough
    applied: bytes = b""  # a header line: which of its preferences are heeded


@dataclass(frozen=True, slots=True)
class Opening:
    """What a head opens: how its body comes, and what is to be done with it.

    A `refusal` answers the request once its body has been read and dropped, so that the connection
    can go on.
    """

    length: int  # of the body; or CHUNKED
    post: Post | None
    ask: Ask | None
    refusal: Refused | None
    keep: bool
    old: bool
    expects: bool
    headless: bool  # asked with HEAD: the answer has no body
    lasting: bool  # may be remembered: it is likely to come again


class Gate:
    """The rules of one receiver. `encodings` are those that its interceptors undo; `receipts` says
    whether there is an engine, so that messages come to their end."""

    def __init__(
        self,
        options: HttpReceiverOptions,
        peer: str,
        encodings: Collection[bytes] = (),
        *,
        receipts: bool = False,
    ) -> None:
        self._options = options
        self._peer = peer
        self._receipts = receipts
        self._path = options.path.rstrip("/").encode()
        self._tokens = [
            hashlib.sha256(token.get_secret_value().encode()).digest() for token in options.tokens
        ]
        self._names = {n.encode() for n in options.meta_headers if not n.endswith("*")}
        self._prefixes = tuple(n[:-1].encode() for n in options.meta_headers if n.endswith("*"))
        self._encodings = {b"identity", *encodings}

    def open(self, data: bytes) -> Opening:
        """Raises Refused where the connection must end with the answer."""
        head = parse_head(data)
        post, ask, refusal = None, None, None
        try:
            if head.path.startswith(_RECEIPTS) and head.method in (b"GET", b"HEAD"):
                ask = self._ask(head)
            else:
                post = self._admit(head)
        except Refused as error:
            refusal = error
        except InvalidMessage as error:
            refusal = Refused(400, str(error))
        if refusal is not None and head.expects:
            # The client waits with its body, and need not send it: nobody knows where it would end.
            refusal.close = True
        if refusal is not None and refusal.close:
            raise refusal
        return Opening(
            length=head.length,
            post=post,
            ask=ask,
            refusal=refusal,
            keep=head.keep,
            old=head.old,
            expects=head.expects,
            headless=head.method == b"HEAD",
            lasting=(
                post is not None and post.stream is None and len(data) <= MAX_KNOWN_HEAD_BYTES
            ),
        )

    def _ask(self, head: Head) -> Ask:
        self._check_body(head)
        self._authorise(dict(head.headers).get(b"authorization", b""))
        try:
            event = EventId.parse(unquote_to_bytes(head.path[len(_RECEIPTS) :]).decode())
        except (InvalidMessage, UnicodeDecodeError):
            raise Refused(404, "a receipt is at /receipts/RECEIVER/STREAM/SEQUENCE") from None
        if event.peer != self._peer:
            raise Refused(404, f"this receiver is {self._peer}; it knows its own messages only")
        asked = dict(parse_qsl(head.query.decode("latin-1")))
        if "at" not in asked:
            return Ask(event, None)
        partition, _, offset = asked["at"].partition(":")
        if not (_is_number(partition) and _is_number(offset)):
            raise Refused(400, "`at` is PARTITION:OFFSET, as in the Location of an answer")
        return Ask(event, (int(partition), int(offset)))

    def _check_body(self, head: Head) -> None:
        if head.length != CHUNKED and head.length > self._options.max_body_bytes:
            raise too_large(self._options.max_body_bytes)

    def _check_target(self, head: Head) -> None:
        """A message is posted to the receiver's path; receipts are elsewhere, or also below it."""
        here = head.path == self._path or head.path.startswith(self._path + b"/")
        receipt = head.path.startswith(_RECEIPTS)
        if here and head.method == b"POST":
            return
        if here or receipt:
            methods = (["GET", "HEAD"] if receipt else []) + (["POST"] if here else [])
            reason = "messages are sent with POST" if here else "receipts are asked for with GET"
            raise Refused(405, reason, hint=f"allow: {', '.join(methods)}\r\n".encode())
        raise Refused(404, f"messages are posted to {self._options.path} or below it")

    def _admit(self, head: Head) -> Post:
        self._check_body(head)
        self._check_target(head)
        found = dict(head.headers)
        self._authorise(found.get(b"authorization", b""))
        self._check_encoding(found.get(b"content-encoding", b"identity"))
        framing = self._framing(found.get(b"content-type", b""))
        meta = self._meta(head.query, head.headers)
        patience, applied = self._patience(meta.pop("sync", None), head.headers)
        stream, seq = _sender_stream(found)
        event = None
        if self._options.mode == "auto" and framing in ("one", "lines"):
            event = cloudevents.binary(head.headers)
        if event is not None:
            framing = "one"
            meta.update(event)
            if stream is None:
                stream = KEY_STREAM + cloudevents.idempotency_key(event)
        keyed = stream is not None and stream.startswith(KEY_STREAM)
        if keyed and framing in ("lines", "length_prefixed", "events"):
            raise Refused(
                400, "Idempotency-Key names one message; number many with Penstock-Stream"
            )
        return Post(
            framing,
            meta,
            encode_meta(meta),
            stream,
            seq,
            single=keyed or event is not None,
            patience=patience,
            applied=applied,
        )

    def _patience(
        self, sync: str | None, headers: list[tuple[bytes, bytes]]
    ) -> tuple[Patience | None, bytes]:
        """`?sync=true`, the option `sync`, and `Prefer: wait=N, respond-async` (RFC 7240): with
        `respond-async`, or `?sync=false`, a sender that has waited in vain is told 202."""
        if sync not in _SYNC:
            raise Refused(400, "`sync` is true or false")
        seconds, asynchronous = _preferences(headers)
        wanted = _SYNC[sync] if sync is not None else self._options.sync and not asynchronous
        if wanted and not self._receipts:
            raise Refused(
                501,
                "this flow runs without its engine, so there will be no receipt; nothing was stored: "
                "send without sync",
            )
        if seconds == 0 or not self._receipts:
            seconds = None
        if seconds is None and not wanted:
            heeded = asynchronous and self._options.sync
            return None, _APPLIED % b"respond-async" if heeded else b""
        longest = self._options.sync_timeout_s
        if seconds is None:
            return Patience(longest, sync=True), b""
        granted = min(float(seconds), longest)
        strict = wanted or (sync is None and not asynchronous)
        return Patience(granted, sync=strict), _APPLIED % b"wait=%d" % granted

    def _authorise(self, value: bytes) -> None:
        if not self._tokens:
            return
        scheme, _, token = value.partition(b" ")
        shown = hashlib.sha256(token.strip()).digest()
        known = [hmac.compare_digest(shown, token) for token in self._tokens]
        if scheme.lower() != b"bearer" or not any(known):
            raise Refused(401, "a bearer token is needed", hint=b"www-authenticate: Bearer\r\n")

    def _check_encoding(self, value: bytes) -> None:
        encoding = value.strip().lower()
        if encoding not in self._encodings:
            accepted = b", ".join(sorted(self._encodings))
            raise Refused(
                415,
                f"content-encoding {encoding.decode('latin-1')!r}: this receiver needs an "
                "interceptor for it, such as gzip or decompress",
                hint=b"accept-encoding: %b\r\n" % accepted,
            )

    def _framing(self, content_type: bytes) -> Framing:
        if self._options.mode != "auto":
            return self._options.mode
        kind = content_type.partition(b";")[0].strip().lower()
        if kind in _LINES:
            return "lines"
        mode = cloudevents.mode(kind.decode("latin-1"))
        if mode == "unknown":
            raise Refused(415, "CloudEvents are read in JSON only: application/cloudevents+json")
        if mode == "binary":
            return "one"
        return "event" if mode == "structured" else "events"

    def _meta(self, query: bytes, headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
        meta: dict[str, str] = {}
        if query:
            try:
                pairs = parse_qsl(
                    query.decode("latin-1"),
                    keep_blank_values=True,
                    encoding="utf-8",
                    errors="replace",
                    max_num_fields=MAX_QUERY_FIELDS,
                )
            except ValueError:
                raise Refused(400, f"more than {MAX_QUERY_FIELDS} query parameters") from None
            meta.update(pairs)
        if self._names or self._prefixes:
            for name, value in headers:
                if name in self._names or (self._prefixes and name.startswith(self._prefixes)):
                    meta[name.decode("latin-1")] = value.decode("latin-1")
        for key in meta:
            if key.startswith(OWN_META):
                raise Refused(400, f"meta names that begin with {OWN_META} are Penstock's own")
        return meta


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _preferences(headers: list[tuple[bytes, bytes]]) -> tuple[int | None, bool]:
    """How long the sender would wait, and whether it would rather not. What makes no sense is, by
    the rules of preferences, not there; of two the first counts."""
    seconds, asynchronous = None, False
    for part in b",".join(value for name, value in headers if name == b"prefer").split(b","):
        name, _, value = part.partition(b";")[0].partition(b"=")
        word = value.strip().strip(b'"').decode("latin-1")
        match name.strip().lower():
            case b"wait" if seconds is None and _is_number(word):
                seconds = int(word)
            case b"respond-async":
                asynchronous = True
    return seconds, asynchronous


def too_large(max_body_bytes: int) -> Refused:
    return Refused(413, f"a body has at most {max_body_bytes} bytes", close=True)


def _sender_stream(headers: dict[bytes, bytes]) -> tuple[str | None, int]:
    key = headers.get(b"idempotency-key")
    name = headers.get(STREAM_HEADER)
    if key is not None and name is not None:
        raise Refused(400, "send Idempotency-Key or Penstock-Stream, not both")
    if key is not None:
        text = key.decode("latin-1").strip()
        longest = MAX_STREAM_NAME_BYTES - len(KEY_STREAM)
        if not text or len(text.encode()) > longest or not text.isprintable():
            raise Refused(400, f"Idempotency-Key has 1 to {longest} printable characters")
        return KEY_STREAM + text, 0
    if name is None:
        if SEQUENCE_HEADER in headers:
            raise Refused(400, "Penstock-Sequence needs Penstock-Stream: the stream it numbers")
        return None, 0
    digits = headers.get(SEQUENCE_HEADER, b"")
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        raise Refused(
            400, "Penstock-Stream needs Penstock-Sequence: the number of its first message"
        )
    return check_sender_stream(name.decode("latin-1")), int(digits)
