"""Which offsets a query reads next. Knows topics and options, not Spark.

Offsets of a query are a mapping from partition to the offset that it reads next. A partition that a
query meets for the first time (the topic grew, or was added to the options) is first *entered*: it appears
in the offsets at its beginning, and is read from the next micro-batch on. So where it began is
recorded before anything of it is read, and a repeat of a micro-batch reads the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from penstock import logs
from penstock.errors import ConfigError, NoSuchTopic, OffsetsLost
from penstock.flow.lost import RETENTION, Lost
from penstock.log import TopicName
from penstock.log.embedded import EmbeddedLog
from penstock.log.embedded.reader import PartitionReader
from penstock.spark.losses import note
from penstock.spark.options import At, ReadOptions, Where

Offsets = dict[At, int]
DELETED = "the topic or the partition was deleted"
log = logs.get("spark.source")


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets of one partition that one task reads: from `start` up to, not including, `end`."""

    at: At
    start: int
    end: int


class Ranges:
    """The topics of one query, as they are now. Kept by the process that plans its micro-batches."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._log = EmbeddedLog(options.data_dir)
        self._readers: dict[At, PartitionReader] = {}
        self._identities: dict[TopicName, int] = {}

    def __getstate__(self) -> ReadOptions:
        return self._options

    def __setstate__(self, options: ReadOptions) -> None:
        self.__init__(options)  # type: ignore[misc]

    # --- Where things are ----------------------------------------------------------------------

    def resolve(self, where: Where) -> Offsets:
        """Where that is, in every partition. An offset that is past the end counts as the end."""
        found = {}
        readers = self._open(missing_ok=False)
        for at, reader in readers.items():
            wanted = where.offsets.get(at, where.edge)
            if where.time_us is not None:
                found[at] = reader.offset_at(where.time_us)
            elif isinstance(wanted, int):
                found[at] = min(wanted, reader.end())
            else:
                found[at] = reader.begin() if wanted == "earliest" else reader.end()
        for at in where.offsets:
            if at not in readers:
                raise ConfigError(f"{at}: there is no such partition among those that are read")
        return found

    def ends(self) -> Offsets:
        """The end of every partition there is now."""
        return {at: reader.end() for at, reader in self._open().items()}

    def next(
        self, start: Offsets, *, until: Offsets | None, max_rows: int | None, max_bytes: int | None
    ) -> Offsets:
        """The offsets after the next micro-batch. `until` holds it back from what came later."""
        readers = self._open()
        ends = {at: reader.end() for at, reader in readers.items()}
        if until is not None:
            ends = {at: until[at] for at in ends if at in until}
        known_topics = {at.topic for at in start}
        after: Offsets = {}
        backlog: Offsets = {}
        for at, end in ends.items():
            if at not in start:
                after[at] = 0 if at.topic in known_topics else readers[at].begin()
            elif start[at] > end:  # the topic was deleted and made anew; `plan` judges that
                after[at] = end
            else:
                after[at] = start[at]
                backlog[at] = end - start[at]
        if max_rows is not None:
            backlog = share(backlog, max_rows)
        if max_bytes is not None:
            backlog = self._within(start, backlog, max_bytes)
        for at, rows in backlog.items():
            after[at] += rows
        for at in start.keys() - after.keys():
            if until is None or at in until:
                self._gone(at)
        return after

    def plan(self, start: Offsets, end: Offsets) -> list[Range]:
        """What to read from `start` to `end`; raises or warns where that is no longer there."""
        readers = self._open()
        found = []
        for at, stop in sorted(end.items()):
            first = start.get(at, stop)
            reader = readers.get(at)
            if first < stop and reader is None:
                self._note(Range(at, first, stop), DELETED)
            if first != stop and reader is None:
                self._gone(at)
            if first == stop or reader is None:
                continue
            begin = reader.begin()
            if first > stop:
                self._lost(
                    f"{at}: reading had come to offset {first}, but the topic ends at {stop}: "
                    "it was deleted and made anew",
                    begin,
                )
                first = begin
            elif first < begin:
                self._lost(
                    f"{at}: offsets {first} to {min(begin, stop) - 1} are gone; {RETENTION}",
                    begin,
                )
                self._note(Range(at, first, min(begin, stop)), RETENTION)
                first = begin
            if first < stop:
                found.append(Range(at, first, stop))
        return split(found, self._options.min_partitions)

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()

    # --- Limits --------------------------------------------------------------------------------

    def _within(self, start: Offsets, backlog: Offsets, max_bytes: int) -> Offsets:
        """As much of the backlog as fits: fairly shared, and at least one message."""
        taken = dict.fromkeys(backlog, 0)
        left_bytes = max_bytes
        hungry = [at for at, rows in backlog.items() if rows]
        while hungry and left_bytes // len(hungry):
            portion = left_bytes // len(hungry)
            for at in list(hungry):
                first = start[at] + taken[at]
                stop = start[at] + backlog[at]
                offset, used_bytes = self._readers[at].advance(first, stop, portion)
                taken[at] = offset - start[at]
                left_bytes -= used_bytes
                if offset in (first, stop):
                    hungry.remove(at)
        if not any(taken.values()) and (waiting := [at for at, rows in backlog.items() if rows]):
            taken[waiting[0]] = 1
        return taken

    # --- Loss ----------------------------------------------------------------------------------

    def _gone(self, at: At) -> None:
        self._lost(f"{at}: {DELETED}", None)

    def _note(self, span: Range, why: str) -> None:
        if self._options.losses is not None:
            lost = Lost(span.at.topic, span.at.partition, span.start, span.end, why)
            note(self._options.losses, [lost])

    def _lost(self, what: str, begin: int | None) -> None:
        lost(what, begin, fail=self._options.fail_on_data_loss)

    # --- Readers -------------------------------------------------------------------------------

    def _open(self, *, missing_ok: bool = True) -> dict[At, PartitionReader]:
        """A reader for every partition there is now."""
        present: set[At] = set()
        for name in self._options.topics:
            try:
                identity, partitions = self._log.identity(name), self._log.config(name).partitions
            except NoSuchTopic:
                if missing_ok:
                    continue
                raise NoSuchTopic(f"there is no topic {name} in {self._options.data_dir}") from None
            if self._identities.get(name) != identity:
                self._drop(at for at in list(self._readers) if at.topic == str(name))
                self._identities[name] = identity
            for partition in range(partitions):
                at = At(str(name), partition)
                present.add(at)
                if at not in self._readers:
                    self._readers[at] = self._log.reader(name, partition)
        self._drop(self._readers.keys() - present)
        return self._readers

    def _drop(self, gone: Any) -> None:
        for at in gone:
            self._readers.pop(at).close()


def share(wanted: Mapping[At, int], limit: int) -> Offsets:
    """Split a limit fairly: who wants little gets it all, the others the same each."""
    given: Offsets = {}
    left = limit
    for at in sorted(wanted, key=lambda at: (wanted[at], at)):
        given[at] = min(wanted[at], left // (len(wanted) - len(given)))
        left -= given[at]
    return given


def split(ranges: list[Range], pieces: int) -> list[Range]:
    """Cut ranges, the longest most, until there are about so many; their order stays."""
    total = sum(span.end - span.start for span in ranges)
    if len(ranges) >= pieces or not total:
        return ranges
    found = []
    for span in ranges:
        length = span.end - span.start
        parts = min(length, max(1, round(pieces * length / total)))
        cuts = [span.start + length * i // parts for i in range(parts + 1)]
        found += [Range(span.at, first, end) for first, end in pairwise(cuts)]
    return found


def lost(what: str, begin: int | None, *, fail: bool) -> None:
    """Messages were to be read and cannot be: fail, or say so and go on."""
    if fail:
        on = "" if begin is None else f" at offset {begin}"
        raise OffsetsLost(
            f"{what}. To go on{on} without them, set failOnDataLoss to false; to start over, use a new "
            "checkpoint"
        )
    log.warning("messages are lost to this query", what=what, goes_on_at=begin)
