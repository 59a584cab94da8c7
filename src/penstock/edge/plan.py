"""What one edge process has to do: decided by the supervisor, sent to it once.

A plan may hold secrets (TLS keys' passwords, tokens), so it travels over the inherited socket pair
and nowhere else: no argument, no environment variable, no file, no log line. Its `repr` leaves the
options out for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceiverPlan:
    """One receiver. `options` are those of its component, checked, with a concrete address."""

    name: str
    module: str
    options: dict[str, Any] = field(repr=False)
    interceptors: list[tuple[str, dict[str, Any]]] = field(repr=False)
    topic: str
    processes: int = 1
    """Over how many processes the partitions of its topic are spread: p belongs to process
    p % processes."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "module": self.module,
            "options": self.options,
            "interceptors": [[name, options] for name, options in self.interceptors],
            "topic": self.topic,
            "processes": self.processes,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ReceiverPlan:
        return cls(
            name=data["name"],
            module=data["module"],
            options=data["options"],
            interceptors=[(name, options) for name, options in data["interceptors"]],
            topic=data["topic"],
            processes=data["processes"],
        )


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """Process number `process` of `processes`.

    A receiver whose topic has fewer partitions than there are processes is in the plans of the
    first processes only: who has it in its plan owns at least one partition of its topic.
    """

    flow: str
    data_dir: str
    process: int
    processes: int
    receivers: list[ReceiverPlan]
    stop_timeout_s: float
    max_pending_bytes: int
    log_level: str
    log_format: str
    engine: bool = False
    """Whether an engine settles messages, so that senders can wait for their receipts."""

    def to_json(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "data_dir": self.data_dir,
            "process": self.process,
            "processes": self.processes,
            "receivers": [receiver.to_json() for receiver in self.receivers],
            "stop_timeout_s": self.stop_timeout_s,
            "max_pending_bytes": self.max_pending_bytes,
            "log_level": self.log_level,
            "log_format": self.log_format,
            "engine": self.engine,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> EdgePlan:
        return cls(
            flow=data["flow"],
            data_dir=data["data_dir"],
            process=data["process"],
            processes=data["processes"],
            receivers=[ReceiverPlan.from_json(receiver) for receiver in data["receivers"]],
            stop_timeout_s=data["stop_timeout_s"],
            max_pending_bytes=data["max_pending_bytes"],
            log_level=data["log_level"],
            log_format=data["log_format"],
            engine=data["engine"],
        )
