"""What becomes of a message: the eight statuses, and the HTTP code that reports each."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """A message ends in exactly one of these; `NEW` means that it has not ended yet."""

    NEW = "new"
    DONE = "done"
    PARTIAL = "partial"
    INVALID = "invalid"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    UNROUTABLE = "unroutable"
    THROTTLED = "throttled"

    @property
    def http_code(self) -> int:
        return _HTTP_CODES[self]


_HTTP_CODES = {
    Status.NEW: 202,
    Status.DONE: 200,
    Status.PARTIAL: 409,
    Status.INVALID: 400,
    Status.FAILED: 500,
    Status.TIMED_OUT: 504,
    Status.UNROUTABLE: 406,
    Status.THROTTLED: 429,
}
