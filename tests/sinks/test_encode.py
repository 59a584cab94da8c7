"""Events as lines."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.admin.rows import json_lines as tail_lines
from penstock.log import SCHEMA
from penstock.sinks.columns import without_own_meta
from penstock.sinks.encode import json_lines, plain_lines
from penstock.sinks.interface import EVENTS

from .making import TIME_US, events

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
payloads = st.binary(max_size=30) | texts.map(str.encode)
times = st.integers(0, 253_402_300_799_999_999)
rows = st.lists(
    st.tuples(
        texts, times, st.none() | payloads, st.dictionaries(texts, texts, max_size=3), payloads
    ),
    min_size=1,
    max_size=20,
)


def batch_of(found: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = [
        ["t"] * len(found),
        [3] * len(found),
        range(len(found)),
        [row[1] for row in found],
        ["web"] * len(found),
        [row[0] for row in found],
        range(len(found)),
        [row[2] for row in found],
        [list(row[3].items()) for row in found],
        [row[4] for row in found],
    ]
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, EVENTS, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENTS)


@settings(deadline=None)
@given(rows, st.integers(0, 5))
def test_json_lines_are_those_of_tail(found: list[tuple[Any, ...]], skipped: int) -> None:
    batch = batch_of(found).slice(skipped)
    dictionaries = [
        batch.column(field.name).cast(field.type)
        if not pa.types.is_dictionary(field.type)
        else batch.column(field.name).dictionary_encode()
        for field in SCHEMA
    ]
    expected = tail_lines(pa.RecordBatch.from_arrays(dictionaries, schema=SCHEMA), "t", 3)
    lines = json_lines(batch).to_pylist()
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert [json.loads(line) for line in lines] == [json.loads(line) for line in expected]


def test_a_line_of_json_is_as_documented() -> None:
    batch = events(b'{"a": "\n"}', keys=[b"\xff"], meta={"x": '"1"'}, seq=5)
    assert json_lines(batch).to_pylist() == [
        b'{"topic":"f.web","partition":0,"offset":5,"time":"2023-11-14T22:13:20.000005Z",'
        b'"id":{"peer":"web","stream":"s","seq":5},"key":"/w==","meta":{"x":"\\"1\\""},'
        b'"payload":"{\\"a\\": \\"\\n\\"}","key_encoding":"base64"}\n'
    ]


def test_a_time_far_away_is_still_a_time() -> None:
    batch = events(b"a")
    at = batch.schema.get_field_index("time")
    far = pa.array([TIME_US * 1000], pa.timestamp("us", "UTC"))
    [line] = json_lines(batch.set_column(at, EVENTS.field("time"), far)).to_pylist()
    assert json.loads(line)["time"].endswith("Z")


@settings(deadline=None)
@given(st.lists(payloads, max_size=20), st.integers(0, 5))
def test_plain_lines_end_once(found: list[bytes], skipped: int) -> None:
    lines = plain_lines(pa.array(found, pa.binary()).slice(skipped)).to_pylist()
    assert lines == [one if one.endswith(b"\n") else one + b"\n" for one in found[skipped:]]


@settings(deadline=None)
@given(rows, st.integers(0, 5), st.lists(st.sampled_from(["penstock.at", "penstock.x", "a"])))
def test_our_own_meta_is_left_out_and_nothing_else(
    found: list[tuple[Any, ...]], skipped: int, more: list[str]
) -> None:
    found = [(*row[:3], {**row[3], **dict.fromkeys(more, "?")}, row[4]) for row in found]
    batch = batch_of(found).slice(skipped)
    plain = without_own_meta(batch)
    kept = [
        [entry for entry in meta if not entry[0].startswith("penstock.")]
        for meta in batch.column("meta").to_pylist()
    ]
    assert plain.column("meta").to_pylist() == kept
    assert plain.drop_columns(["meta"]).equals(batch.drop_columns(["meta"]))
