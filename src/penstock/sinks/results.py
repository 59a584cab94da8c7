"""What a task tells the driver: votes, exceptions and where counters stand, as one Arrow batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.limits import MAX_REASON_CHARS
from penstock.sinks.bits import Offsets, pack
from penstock.sinks.replayed import REPLAY
from penstock.status import Status

RESULTS = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("sink", pa.string()),
        pa.field("task", pa.int32(), nullable=False),
        pa.field("attempt", pa.int64(), nullable=False),
        pa.field("ok", pa.bool_()),
        pa.field("token", pa.binary()),
        pa.field("rows", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("took_s", pa.float64()),
        pa.field("error", pa.string()),
        pa.field("answered", pa.bool_()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("peer", pa.string()),
        pa.field("stream", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("branch", pa.string()),
        pa.field("taken", pa.list_(pa.string())),
        pa.field("replay", pa.string()),
    ]
)
"""By `kind`, on each row `task` and `attempt` being those of the Spark task:

- `vote`: one for every sink of the transaction. `ok`, the `token` for `commit`, `rows` and `bytes`
  (payloads) that it took; or not ok, and the `error`; `answered` says whether it was there and refused. `took_s` is how long it kept the task waiting.
- `exception`: an event that did not end as done on one branch: `topic`, `partition`, `offset` and id of its
  origin, `status`, `reason`, and `branch`, the component where it ended; `sink` if that is a sink. `taken`
  are the sinks that were given other copies of it; `replay` is what its meta says if it is a replayed one.
- `parked`: of one `topic` and `partition`, which events a park took in place of `sink`: `offset` is the
  first, `token` has a bit for each from there on (see `penstock.sinks.bits`).
- `counter`: where the link that `sink` names has come to: `rows`.
"""

_PLACE = ("topic", "partition", "offset")
_ORIGIN = ("topic", "partition", "offset", "peer", "stream", "seq")


class Results:
    """Collects the rows of one attempt. Exceptions stay columns: there may be many."""

    def __init__(self, task: int, attempt: int) -> None:
        self.task = task
        self.attempt = attempt
        self._exceptions: dict[str | None, list[pa.RecordBatch]] = {}  # by sink
        self._votes: list[dict[str, Any]] = []
        self._counters: dict[str, int] = {}
        self._given: dict[str, list[pa.RecordBatch]] = {}  # positions, by sink
        self._kept: dict[str, list[pa.RecordBatch]] = {}  # the same, of what goes on from there

    def vote(
        self,
        sink: str,
        token: bytes,
        rows: int,
        size_bytes: int,
        error: str | None,
        took_s: float = 0.0,
        *,
        answered: bool = False,
    ) -> None:
        ok = error is None
        if not ok:
            # It will be asked again for everything: what it has refused so far is not settled.
            self._exceptions.pop(sink, None)
        self._votes.append(
            {
                "kind": "vote",
                "sink": sink,
                "ok": ok,
                "token": token if ok else None,
                "rows": rows if ok else 0,
                "bytes": size_bytes if ok else 0,
                "took_s": took_s,
                "error": None if error is None else error[:MAX_REASON_CHARS],
                "answered": answered and not ok,
            }
        )

    def failed(self, events: pa.RecordBatch, reasons: Sequence[str], sink: str) -> None:
        """A sink will never take these."""
        reason = pa.array([reason[:MAX_REASON_CHARS] for reason in reasons], pa.string())
        status = str(Status.FAILED)
        self._add(sink, events, status=status, reason=reason, branch=sink)

    def ended(self, rows: pa.RecordBatch) -> None:
        """Rows that no sink is meant to get. Those that ended as done need no mention."""
        status = rows.column("status")
        told = pc.and_kleene(pc.is_valid(status), pc.not_equal(status, str(Status.DONE)))
        rows = rows.filter(pc.fill_null(told, False))
        if rows.num_rows:
            reason = pc.utf8_slice_codeunits(rows.column("reason"), 0, MAX_REASON_CHARS)
            branch = rows.column("branch")
            self._add(None, rows, status=rows.column("status"), reason=reason, branch=branch)

    def given(self, sink: str, events: pa.RecordBatch) -> None:
        """A sink was handed these, for better or worse."""
        self._given.setdefault(sink, []).append(events.select(list(_PLACE)))

    def parked(self, sink: str, events: pa.RecordBatch) -> None:
        """A park or a cut has taken these; what it refuses does not wait there."""
        self._kept.setdefault(sink, []).append(events.select(list(_PLACE)))

    def counter(self, name: str, value: int) -> None:
        self._counters[name] = value

    def _add(self, sink: str | None, rows: pa.RecordBatch, **more: Any) -> None:
        columns = {name: rows.column(name) for name in _ORIGIN}
        columns["replay"] = pc.map_lookup(rows.column("meta"), REPLAY, "last")
        found = _rows(rows.num_rows, {"kind": "exception", "sink": sink, **columns, **more}, self)
        self._exceptions.setdefault(sink, []).append(found)

    def batch(self) -> pa.RecordBatch:
        singles = [*self._votes]
        singles += [
            {"kind": "counter", "sink": name, "rows": value}
            for name, value in sorted(self._counters.items())
        ]
        singles += self._parked()
        parts = [_rows(1, single, self) for single in singles]
        parts += [self._with_taken(part) for found in self._exceptions.values() for part in found]
        table = pa.Table.from_batches(parts, RESULTS).combine_chunks()
        found = table.to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], RESULTS)

    def _parked(self) -> list[dict[str, Any]]:
        refused = {vote["sink"] for vote in self._votes if not vote["ok"]}
        found = []
        for sink in sorted(self._kept.keys() - refused):
            for (topic, partition), offsets in _places(self._kept[sink]).items():
                start, bits = pack(offsets)
                found.append(
                    {
                        "kind": "parked",
                        "sink": sink,
                        "topic": topic,
                        "partition": partition,
                        "offset": start,
                        "rows": len(offsets),
                        "token": bits,
                    }
                )
        return found

    def _with_taken(self, exceptions: pa.RecordBatch) -> pa.RecordBatch:
        """Which sinks were given other copies of the same events."""
        places = list(zip(*(exceptions.column(name).to_pylist() for name in _PLACE), strict=True))
        taken: list[list[str]] = [[] for _ in places]
        for sink, batches in self._given.items():
            given = {place: set(found.tolist()) for place, found in _places(batches).items()}
            for index, (topic, partition, offset) in enumerate(places):
                if offset in given.get((topic, partition), ()):
                    taken[index].append(sink)
        at = RESULTS.get_field_index("taken")
        return exceptions.set_column(at, RESULTS.field(at), pa.array(taken, RESULTS.field(at).type))


def _places(batches: Sequence[pa.RecordBatch]) -> dict[tuple[str, int], Offsets]:
    table = pa.Table.from_batches(batches)
    grouped = table.group_by(["topic", "partition"]).aggregate([("offset", "list")])
    return {
        (row["topic"], row["partition"]): np.unique(np.array(row["offset_list"], np.int64))
        for row in grouped.to_pylist()
    }


def _rows(count: int, columns: dict[str, Any], results: Results) -> pa.RecordBatch:
    """Rows of `RESULTS`: columns, or single values that stand for a column of them, or nothing."""
    given = {"task": results.task, "attempt": results.attempt, **columns}
    found = []
    for field in RESULTS:
        value = given.get(field.name)
        if isinstance(value, pa.Array):
            found.append(value if value.type == field.type else value.cast(field.type))
        else:
            found.append(pa.repeat(pa.scalar(value, field.type), count))
    return pa.RecordBatch.from_arrays(found, schema=RESULTS)
