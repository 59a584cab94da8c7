"""A program as they are in the field: it knows frames and sockets, and nothing of our SDK."""

from __future__ import annotations

import socket
import ssl
from collections import deque

from penstock.connector.columns import Messages
from penstock.connector.decoder import Decoder
from penstock.connector.frames import (
    Ack,
    Eos,
    Frame,
    Hello,
    Message,
    Notify,
    NotifyAck,
    Ok,
    encode,
)


class Extension:
    def __init__(
        self,
        address: tuple[str, int],
        *,
        version: str = "v0.0.1",
        cookie: str = "",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.sock = socket.create_connection(address, timeout=120)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost")
        self.hello = Hello(version, cookie, "field", "program")
        self._decoder = Decoder()
        self._heard: deque[Frame] = deque()
        self.credits = 0

    def say(self, *frames: Frame) -> None:
        self.sock.sendall(b"".join(map(encode, frames)))

    def hear(self) -> Frame | None:
        """The next frame; None at the end."""
        while not self._heard:
            data = self.sock.recv(1 << 16)
            if not data:
                return None
            for event in self._decoder.feed(data):
                assert not isinstance(event, Messages)
                self._heard.append(event)  # type: ignore[arg-type]
        frame = self._heard.popleft()
        if isinstance(frame, Ok | Ack):
            self.credits += frame.credits
        return frame

    def greet(self) -> Ok:
        self.say(self.hello)
        answer = self.hear()
        assert isinstance(answer, Ok), answer
        return answer

    def open(self, stream_id: int, name: bytes = b"", reference: int = 0) -> NotifyAck:
        self.say(Notify(stream_id, name, reference))
        while not isinstance(answer := self.hear(), NotifyAck):
            assert isinstance(answer, Ack), answer
        assert answer.stream_id == stream_id
        return answer

    def send(self, stream_id: int, *ids: int, payload: bytes | None = None) -> None:
        self.say(
            *(
                Message(
                    stream_id,
                    i,
                    0,
                    None,
                    f"{stream_id}:{i}".encode() if payload is None else payload,
                )
                for i in ids
            )
        )

    def acked(self, stream_id: int, reference: int) -> None:
        """Wait until this stream is acknowledged up to there."""
        while True:
            answer = self.hear()
            assert isinstance(answer, Ack), answer
            if (stream_id, reference) in answer.streams:
                return

    def end(self, stream_id: int) -> int:
        self.say(Eos(stream_id))
        while True:
            answer = self.hear()
            assert isinstance(answer, Ack), answer
            for named, reference in answer.streams:
                if named == stream_id:
                    return reference

    def close(self) -> None:
        self.sock.close()
