"""UDP: one stream a sender address."""

from __future__ import annotations

from pydantic import Field

from penstock.config.options import SizeBytes, Socket
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.limits import MAX_DATAGRAM_BYTES, RECV_BUFFER_BYTES, GiB
from penstock.peers.options import (
    AddressOptions,
    BackendOptions,
    BindOptions,
    DestinationOptions,
    ReceiverOptions,
)

LOSSY = "a datagram may be lost on its way, and nobody is told"


class DatagramOptions(ReceiverOptions):
    recv_buffer_bytes: SizeBytes = Field(RECV_BUFFER_BYTES, ge=1024, le=GiB)
    """The socket's buffer in the kernel (SO_RCVBUF); the system may give less, which is logged."""

    max_datagram_bytes: SizeBytes = Field(MAX_DATAGRAM_BYTES, ge=1, le=MAX_DATAGRAM_BYTES)
    """A larger datagram is dropped and counted."""


@declare(Kind.RECEIVER, "udp", "Takes messages from UDP datagrams.", available=True)
class UdpReceiverOptions(BindOptions, BackendOptions, DatagramOptions):
    schemes = ("udp",)

    def listens(self) -> list[Socket]:
        return [Socket("udp", self.bind)]

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_MOST_ONCE, LOSSY


@declare(Kind.PEER, "udp", "Takes messages from UDP datagrams and answers their senders.")
class UdpPeerOptions(UdpReceiverOptions):
    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.BEST_EFFORT, LOSSY


@declare(Kind.SINK, "udp", "Sends each message as a UDP datagram.", available=True)
class UdpSinkOptions(AddressOptions, DestinationOptions):
    schemes = ("udp",)

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.BEST_EFFORT, LOSSY
