"""A fuzz target: the connector protocol's decoders, and the connections that stand on them.

Whatever arrives: events or one reason why not, the same however the bytes are split, and never more
held than one frame. What decodes encodes back to the same bytes. No bytes make a connection raise.
"""

from __future__ import annotations

from penstock.connector import frames, two_phase
from penstock.connector.columns import Messages
from penstock.connector.connection import Connection, Failed
from penstock.connector.decoder import Decoder, Malformed
from penstock.connector.frames import Hello, Notify, Restart
from penstock.connector.receiving import ReceivingConnection
from penstock.connector.sending import SendingConnection
from penstock.connector.sinking import SinkingConnection
from penstock.connector.working import WorkingConnection
from penstock.errors import ProtocolError

MAX_FRAME = 300
HELLO = Hello("v", "c", "p", "i")


def TestOneInput(data: bytes) -> None:
    if len(data) < 3:
        return
    target, first, step, rest = data[0] % 4, data[1], data[2] or 256, data[3:]
    chunks = [rest[:first], *(rest[at : at + step] for at in range(first, len(rest), step))]
    if target == 0:
        _frames(rest, chunks)
    elif target == 1:
        _two_phase(rest)
    else:
        _connections(chunks)


def _frames(data: bytes, chunks: list[bytes]) -> None:
    whole = _events([data])
    assert _events(chunks) == whole
    encoded = b"".join(
        frames.encode(event)  # type: ignore[arg-type]
        for event in whole
        if not isinstance(event, Malformed)
    )
    if not any(isinstance(event, Restart) for event in whole):
        assert data.startswith(encoded)


def _events(chunks: list[bytes]) -> list[object]:
    decoder = Decoder(MAX_FRAME)
    found: list[object] = []
    for chunk in chunks:
        buffer = bytearray(chunk)
        for event in decoder.feed(buffer):
            found += event.each() if isinstance(event, Messages) else [event]
        buffer[:] = b"\xaa" * len(buffer)
        assert decoder.held_bytes <= MAX_FRAME + 4
    assert not any(isinstance(event, Malformed) for event in found[:-1])
    return found


def _two_phase(data: bytes) -> None:
    try:
        message = two_phase.decode_payload(data)
    except ProtocolError:
        return
    assert two_phase.encode_payload(message) == data


def _connections(chunks: list[bytes]) -> None:
    sending, working = SendingConnection(MAX_FRAME), WorkingConnection(MAX_FRAME)
    for client in (sending, working):
        client.hello(HELLO)
    options = {"version": "v", "cookie": "c", "max_frame_bytes": MAX_FRAME}
    servers = ReceivingConnection(**options), SinkingConnection(**options)  # type: ignore[arg-type]
    for connection in (sending, working, *servers):
        for chunk in chunks:
            for event in connection.feed(chunk):
                _answer(connection, event)
        if connection.state == "error":
            assert connection.closing


def _answer(connection: Connection, event: object) -> None:
    """As a program would, so that the bytes get further than the handshake."""
    if isinstance(connection, ReceivingConnection) and isinstance(event, Notify):
        connection.grant(event.stream_id, None)
    if isinstance(connection, SinkingConnection):
        if isinstance(event, Hello):
            connection.approve()
        elif isinstance(event, Notify):
            connection.grant(event.stream_id, 0)
    if isinstance(event, Failed):
        assert connection.closing
