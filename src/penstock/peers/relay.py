"""Modules of the original relay that have no counterpart here, so that its files load unchanged."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from penstock.config.address import Address, without_scheme
from penstock.config.options import Socket, Texts
from penstock.config.registry import Kind, declare
from penstock.guarantee import Guarantee
from penstock.peers.options import ReceiverOptions
from penstock.peers.tcp import NO_REPLY


@declare(Kind.RECEIVER, "evio", "The original relay's receiver on several sockets at once.")
class EvioReceiverOptions(ReceiverOptions):
    listeners: Texts = Field(min_length=1, max_length=64)
    """Where to listen: `tcp://host:port`, `udp://host:port`, `unix:///path`. New files have one
    receiver for each."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.listens()
        return self

    def listens(self) -> list[Socket]:
        return [_socket(listener) for listener in self.listeners]

    def promise(self) -> tuple[Guarantee, str]:
        return Guarantee.AT_MOST_ONCE, NO_REPLY


def _socket(listener: str) -> Socket:
    if listener.startswith("unix://"):
        return Socket("unix", without_scheme(listener, "unix"))
    if listener.startswith("udp://"):
        return Socket("udp", Address.parse(without_scheme(listener, "udp")))
    return Socket("tcp", Address.parse(without_scheme(listener, "tcp")))
