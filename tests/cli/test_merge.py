"""Several partitions as one sequence."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.merge import merged
from penstock.log.interface import SCHEMA

# One list of batches a partition, each a list of times.
partitions = st.lists(st.lists(st.lists(st.integers(0, 20), max_size=6), max_size=5), max_size=4)


def _batches(batches: list[list[int]]) -> Iterator[pa.RecordBatch]:
    offset = 0
    for times in batches:
        count = len(times)
        words = pa.array(["x"] * count, pa.string()).dictionary_encode()
        offsets = pa.array(range(offset, offset + count), pa.int64())
        yield pa.record_batch(
            [
                offsets,
                pa.array(times, pa.timestamp("us", "UTC")),
                words,
                words,
                offsets,
                pa.nulls(count, pa.binary()),
                pa.array([[]] * count, pa.map_(pa.string(), pa.string())),
                pa.array([b""] * count, pa.binary()),
            ],
            schema=SCHEMA,
        )
        offset += count


def _merged(source: list[list[list[int]]]) -> list[tuple[int, int, int]]:
    """(time, partition, offset) in the merged order."""
    found = []
    for each in merged([(number, _batches(part)) for number, part in enumerate(source)]):
        rows = [
            (time.as_py().microsecond, run.partition, offset.as_py())
            for run in each.runs
            for time, offset in zip(run.batch["time"], run.batch["offset"], strict=True)
        ]
        found += [rows[at] for at in each.order.tolist()]
    return found


@given(partitions)
def test_nothing_is_lost_and_partitions_keep_their_order(source: list[list[list[int]]]) -> None:
    found = _merged(source)
    for number, batches in enumerate(source):
        own = [offset for _, partition, offset in found if partition == number]
        assert own == list(range(sum(map(len, batches))))


@given(partitions)
def test_times_that_rise_in_each_partition_rise_in_the_whole(source: list[list[list[int]]]) -> None:
    risen = []
    for batches in source:
        times = iter(sorted(time for batch in batches for time in batch))
        risen.append([[next(times) for _ in batch] for batch in batches])
    found = [time for time, _, _ in _merged(risen)]
    assert found == sorted(found)


def test_a_time_out_of_order_does_not_hold_its_partition_back() -> None:
    assert _merged([[[5, 1]], [[3, 6]]]) == [(3, 1, 0), (5, 0, 0), (1, 0, 1), (6, 1, 1)]
