"""Parts of a batch tried on Spark, without any sink, to find the messages on which links fail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.engine.poison import AtFault, Poisoned, Span, at_fault
from penstock.flow.decisions import Decisions
from penstock.flow.origins import event_ids
from penstock.flow.receipt import Position
from penstock.flow.terms import Ended
from penstock.links.query import FilterOptions, PythonOptions, SelectOptions, SqlOptions
from penstock.log.embedded import EmbeddedLog
from penstock.spark import sql
from penstock.spark.compile import Compiled
from penstock.spark.ends import Ends
from penstock.status import Status


class Search:
    """Of one batch, `rows`, of a piece without state. A part of it is read from the whole of it: what is planned
    already costs less to read once more than another source costs to start."""

    def __init__(
        self, rows: DataFrame, compiled: Compiled, decisions: Decisions, data_dir: Path
    ) -> None:
        self._rows = rows
        self._compiled = compiled
        self._decisions = decisions
        self._data_dir = data_dir
        self._log = EmbeddedLog(data_dir)

    def fails(self, part: Sequence[Span]) -> AtFault | None:
        """Whether the links fail on these messages. What is nobody's fault is raised."""
        self._compiled.release()
        rows = self._compiled.rows(only(self._rows, part), self._decisions.counters)
        try:
            rows.mapInArrow(_Tried(self._compiled.ends), "tried long").toArrow()
        except Exception as error:
            found = at_fault(error)
            if found is None:
                raise
            return found
        finally:
            self._compiled.release()
        return None

    def ended(self, poisoned: Poisoned) -> Iterable[Ended]:
        """Their endings: at the link that it must have been, or else at the piece, that is where it came in."""
        span = poisoned.span
        at = self._culprit(poisoned.error) or self._entry(span.topic)
        ids = event_ids(self._log, span.topic, span.partition, np.arange(span.start, span.end))
        for offset, event in ids.items():
            place = Position(span.topic, span.partition, offset)
            yield Ended(place, event, at, Status.FAILED, poisoned.reason)

    def _culprit(self, error: AtFault) -> str | None:
        """The only link that can fail so. Not one behind a copy: the copies beside it have not gone through."""
        found: dict[str, bool] = {}
        for place in self._compiled.piece.places:
            if place.kind != "link":
                continue
            options = self._compiled.piece.components[place.node].options
            if isinstance(options, PythonOptions):
                can = options.mode == "dataframe" or error.crash
            else:
                can = not error.python and isinstance(
                    options, FilterOptions | SelectOptions | SqlOptions
                )
            if can:
                found[place.node] = found.get(place.node, True) and not place.path
        [(node, alone)] = found.items() if len(found) == 1 else [("", False)]
        return node if alone else None

    def _entry(self, topic: str) -> str:
        return next(one.entry for one in self._compiled.piece.sources if one.topic == topic)


class _Tried:
    """Everything that a task does with rows before it gives them to sinks."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in self._ends.finish(batches):
            pass
        yield pa.RecordBatch.from_pydict({"tried": [1]})


def only(rows: DataFrame, part: Sequence[Span]) -> DataFrame:
    """These messages. The condition stands below all links: they see no others."""
    return rows.where(" OR ".join(map(_in, part)))


def without(rows: DataFrame, bad: Sequence[Span]) -> DataFrame:
    """All but these."""
    return rows.where(f"NOT ({' OR '.join(map(_in, bad))})") if bad else rows


def _in(span: Span) -> str:
    place = f"topic = {sql.text(span.topic)} AND partition = {span.partition}"
    return f"({place} AND offset >= {span.start} AND offset < {span.end})"
