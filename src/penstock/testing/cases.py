"""Cases beside a flow file, as typed models: what goes in, what must come out, and what goes wrong.

`orders.test.yaml` has cases of the flow in `orders.yaml`. `penstock.testing.reading` reads it.
"""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import BeforeValidator, Field, model_validator

from penstock.config.options import Options, Seconds, Texts
from penstock.limits import TEST_CASE_S
from penstock.status import Status
from penstock.testing import faults
from penstock.testing.clock import START, Clock
from penstock.testing.faults import Fault, Match, Step

PAYLOADS = ("text", "base64", "json")


def _time(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("expected a time like 2026-01-01T12:00:00Z") from None
    if found.tzinfo is None:
        raise ValueError("expected a time with its zone, like 2026-01-01T12:00:00Z")
    return found


def _base64(value: str) -> str:
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("expected base64") from None
    return value


def _short(key: str) -> BeforeValidator:
    """A single value stands for a mapping with it alone; `true`, or nothing, for one without any."""

    def expand(value: Any) -> Any:
        if value in (None, "true"):
            return {}
        return {key: value} if isinstance(value, (str, list)) else value

    return BeforeValidator(expand)


Time = Annotated[datetime, BeforeValidator(_time)]
Base64 = Annotated[str, BeforeValidator(_base64)]


class PayloadOptions(Options):
    """A payload: as text, as base64, or as a value that is written as JSON."""

    text: str | None = None
    """The payload as text."""

    base64: Base64 | None = None
    """The payload as base64, where it is not text."""

    json_: str | None = Field(
        None, validation_alias="json", json_schema_extra={"shown": {"type": "any value"}}
    )
    """A value; the payload is its JSON."""

    def given(self) -> list[str]:
        values = (self.text, self.base64, self.json_)
        return [name for name, value in zip(PAYLOADS, values, strict=True) if value is not None]

    @property
    def payload(self) -> bytes | None:
        if self.base64 is not None:
            return base64.b64decode(self.base64)
        found = self.json_ if self.text is None else self.text
        return None if found is None else found.encode()

    @property
    def value(self) -> Any:
        """What `json` says."""
        return None if self.json_ is None else orjson.loads(self.json_)


class InputOptions(PayloadOptions):
    """A message that goes in."""

    file: str | None = Field(None, min_length=1)
    """Instead of a payload: a file beside this one, a message a line."""

    meta: dict[str, str] = Field(default_factory=dict)
    """Its meta."""

    key: str | None = None
    """Its key."""

    time: Time | None = Field(None, json_schema_extra={"shown": {"type": "date and time"}})
    """Its time. Default: by the clock."""

    stream: str | None = Field(None, min_length=1)
    """Its stream, where the sender numbers its messages."""

    seq: int | None = Field(None, ge=0)
    """Its number in the stream. Default: the next."""

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        given = self.given() + (["file"] if self.file is not None else [])
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"expected one of text, json, base64 and file; it has {found}")
        return self


class MessageOptions(PayloadOptions):
    """A message that a sink must have been given."""

    contains: str | None = None
    """A part of the payload."""

    meta: dict[str, str] = Field(default_factory=dict)
    """Meta that it has, perhaps among other."""

    key: str | None = None
    """Its key."""

    @model_validator(mode="after")
    def _one_payload(self) -> Self:
        if len(self.given()) > 1:
            raise ValueError(f"expected one of text, json and base64, not {self.given()}")
        return self


class SinkOptions(Options):
    """What a sink must have been given. A list alone: these messages, in this order."""

    messages: list[Annotated[MessageOptions, _short("text")]] | None = None
    """These and no others."""

    order: Literal["kept", "any"] = "kept"
    """`any`: the messages may have come in any order."""

    count: int | None = Field(None, ge=0)
    """So many."""


_STATUS = Literal[
    "new", "done", "partial", "invalid", "failed", "timed_out", "unroutable", "throttled"
]


class BranchOptions(Options):
    """How a message must have ended, or a copy of it on one branch."""

    status: _STATUS
    """The status."""

    reason: str | None = None
    """A part of the reason."""

    @property
    def wanted(self) -> Status:
        return Status(self.status)


class StatusOptions(BranchOptions):
    """How a message must have ended."""

    branches: dict[str, Annotated[BranchOptions, _short("status")]] = Field(default_factory=dict)
    """By the component where a copy ended. Branches that went well need not be there."""


class StatusesOptions(Options):
    """How the messages of a receiver must have ended. A status alone: all of them so."""

    each: list[Annotated[StatusOptions, _short("status")]] | None = None
    """One for each, in order."""

    all: Annotated[StatusOptions, _short("status")] | None = None
    """The same for all."""


def _statuses(value: Any) -> Any:
    if isinstance(value, list):
        return {"each": value}
    if isinstance(value, str) or (isinstance(value, dict) and "status" in value):
        return {"all": value}
    return value


class MatchOptions(Options):
    """Which messages a fault is for."""

    contains: str | None = None
    """A part of the payload."""

    meta: dict[str, str] = Field(default_factory=dict)
    """Meta that they have."""

    key: str | None = None
    """Their key."""

    stream: str | None = None
    """Their stream."""

    def match(self) -> Match:
        return Match(_bytes(self.contains), self.meta, _bytes(self.key), self.stream)


class FailOptions(Options):
    """When it strikes. A number alone: so many times. Nothing: for ever."""

    times: int | None = Field(None, ge=1)
    """So many times; at a sink attempts, elsewhere messages. Default: for ever."""

    match: MatchOptions | None = None
    """Only for these messages. A sink then refuses them, and is there for the others."""

    reason: str = ""
    """What the receipt says."""

    def fault(self, at: str, kind: Literal["fail", "time_out"]) -> Fault:
        match = None if self.match is None else self.match.match()
        return Fault(at, kind, self.times, match, self.reason)


class CrashOptions(Options):
    """A process is killed and comes back."""

    step: Step = "decided"
    """When: in a `task` on Spark, or at a step of the transaction, where the whole engine is killed."""

    times: int = Field(1, ge=1, le=5)
    """How often. Each costs a start of Spark, but for `task`."""


class FaultOptions(Options):
    """What goes wrong at a component."""

    fail: Annotated[FailOptions | None, _short("times")] = None
    """It fails. A sink is then gone; elsewhere messages end as failed."""

    time_out: Annotated[FailOptions | None, _short("times")] = None
    """It does not answer in time."""

    slow: Seconds | None = Field(None, gt=0, le=60)
    """It takes so much longer over every batch."""

    crash: Annotated[CrashOptions | None, _short("step")] = None
    """Its process is killed, and comes back."""

    def faults(self, at: str) -> list[Fault]:
        found = []
        if self.fail is not None:
            found.append(self.fail.fault(at, "fail"))
        if self.time_out is not None:
            found.append(self.time_out.fault(at, "time_out"))
        if self.slow is not None:
            found.append(faults.slow(at, self.slow))
        if self.crash is not None:
            found.append(faults.crash(at, self.crash.step, times=self.crash.times))
        return found


def _fault(value: Any) -> Any:
    """`fail` alone is a fault, too."""
    if not isinstance(value, str):
        return value
    if value not in ("fail", "time_out", "crash"):
        raise ValueError("expected fail, time_out, crash, or a mapping")
    return {value: "true"}


class ClockOptions(Options):
    """The time that messages get."""

    start: Time = Field(
        START,
        json_schema_extra={"shown": {"type": "date and time", "default": "2026-01-01T00:00:00Z"}},
    )
    """Of the first message that says nothing of its own."""

    step: Seconds = Field(1.0, ge=0)
    """From one such message to the next."""

    then: Seconds = Field(0.0, ge=0)
    """So much time passes behind the last one, without a message: windows end that end by time."""

    def clock(self) -> Clock:
        return Clock(self.start, self.step)


class CaseOptions(Options):
    """One run of the flow."""

    name: str = Field(min_length=1, max_length=200)
    """What it shows; no two cases of a file have the same."""

    inputs: list[dict[str, list[Annotated[InputOptions, _short("text")]]]] = Field(
        default_factory=list
    )
    """What goes in, by receiver. A list of such maps: rounds, between which the flow starts anew."""

    expect: dict[str, Annotated[SinkOptions, _short("messages")]] = Field(default_factory=dict)
    """What must come out, by sink. Sinks that are not named are not looked at."""

    statuses: dict[str, Annotated[StatusesOptions, BeforeValidator(_statuses)]] = Field(
        default_factory=dict
    )
    """How the inputs must end, by receiver."""

    real: Texts = Field(default_factory=list)
    """Sinks that do their work. The others collect what they are given, but for `sink.topic`."""

    faults: dict[str, Annotated[FaultOptions, BeforeValidator(_fault)]] = Field(
        default_factory=dict
    )
    """What goes wrong, by component."""

    clock: ClockOptions = Field(default_factory=ClockOptions)
    """The time."""

    timeout_s: Seconds = Field(TEST_CASE_S, gt=0, le=3600)
    """When it is broken off."""

    def all_faults(self) -> list[Fault]:
        return [fault for at, given in self.faults.items() for fault in given.faults(at)]


class SuiteOptions(Options):
    """A file of cases."""

    flow: str | None = Field(None, min_length=1)
    """The flow file, from here. Default: by the name of this one, `orders.yaml` of `orders.test.yaml`."""

    env: dict[str, str] = Field(default_factory=dict)
    """Variables that the flow file refers to."""

    cases: Any = None
    """The cases."""


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
