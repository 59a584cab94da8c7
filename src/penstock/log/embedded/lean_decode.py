"""Lean frames as Arrow batches, many at a time. `lean.py` has their layout."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import orjson
import pyarrow as pa

from penstock.limits import EXPANDED_META_BYTES, PACKED_ROWS
from penstock.log.embedded.lean import PREFACE, RUN_BYTES
from penstock.log.interface import SCHEMA
from penstock.message import Buffer

_INT64, _STRING, _BINARY = pa.int64(), pa.string(), pa.binary()
_TIME, _NAME = SCHEMA.field("time").type, SCHEMA.field("peer").type
_META = SCHEMA.get_field_index("meta")
_NO_KEY = struct.pack("<i", -1)
_SINGLE = np.dtype(
    [
        ("runs", "<u4"),
        ("messages", "<u4"),
        ("names", "<u4"),
        ("metas", "<u4"),
        ("keys", "<u4"),
        ("has_keys", "<u4"),
        ("count", "<u4"),
        ("name_of", "<u4"),
        ("meta_of", "<u4"),
        ("seq", "<i8"),
        ("time", "<i8"),
        ("length", "<u4"),
    ]
)
"""How a body of one message without a key begins; its label (names and metas) and payload follow."""


@dataclass(slots=True)
class _Columns:
    """The columns of several bodies, end to end: first those of runs, then those of messages.

    Names and metas are numbered within their body; here, within one list over all of them.
    """

    counts: np.ndarray
    seqs: np.ndarray
    times: np.ndarray
    name_of: np.ndarray
    meta_of: np.ndarray

    lengths: np.ndarray
    payload: Buffer

    names: list[list[str]]
    metas: list[dict[str, str]]
    keyed: bool = False


def decode_lean(
    bodies: Sequence[memoryview], offset: int, since: int = 0
) -> Iterator[pa.RecordBatch]:
    """Lean frames that follow each other, as one batch of `SCHEMA`: of what is from `since` on, or more.

    As several if meta is long: a frame stores that of a run once, a batch stores it with every
    message, and a few KiB could become many GiB. The payloads of a single frame are not copied: they
    stay in the mapped file.
    """
    columns = (_of_singles(bodies) if len(bodies) > 1 else None) or _of_any(bodies)
    counts, seqs, times = columns.counts, columns.seqs, columns.times
    name_of, meta_of = columns.name_of, columns.meta_of
    n = len(columns.lengths)
    if len(counts) == 1:  # a large body, or the lines of one connection: the same for all
        seqs = np.arange(seqs[0], seqs[0] + n)
        times, name_of, meta_of = (
            np.full(n, column[0], column.dtype) for column in (times, name_of, meta_of)
        )
    elif len(counts) != n:
        starts = np.cumsum(counts, dtype=np.int64) - counts
        seqs = np.arange(n, dtype=np.int64) + np.repeat(seqs - starts, counts)
        times, name_of, meta_of = (
            np.repeat(column, counts) for column in (times, name_of, meta_of)
        )
    arrays = [
        offsets_array(offset, n),
        _plain(_TIME, times),
        _dictionary([peer for peer, _ in columns.names], name_of),
        _dictionary([stream for _, stream in columns.names], name_of),
        _plain(_INT64, seqs),
        _keys(bodies) if columns.keyed else pa.nulls(n, _BINARY),
        _binary(columns.lengths, columns.payload),
    ]
    metas = _distinct(columns.metas)
    if metas is None or metas.nbytes * n <= EXPANDED_META_BYTES:
        arrays.insert(_META, _metas(metas, meta_of))
        yield pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
        return
    for start, stop in _pieces(columns.metas, meta_of):
        if offset + stop > since:
            piece = [array.slice(start, stop - start) for array in arrays]
            piece.insert(_META, _metas(metas, meta_of[start:stop]))
            yield pa.RecordBatch.from_arrays(piece, schema=SCHEMA)


def _pieces(metas: list[dict[str, str]], meta_of: np.ndarray) -> Iterator[tuple[int, int]]:
    """Stretches of messages whose meta, written out, is not over EXPANDED_META_BYTES."""
    sizes = np.fromiter((len(orjson.dumps(meta)) for meta in metas), np.int64, len(metas))
    ends = np.cumsum(sizes[meta_of])
    start = 0
    while start < len(ends):
        room = EXPANDED_META_BYTES + (int(ends[start - 1]) if start else 0)
        stop = max(start + 1, int(np.searchsorted(ends, room, side="right")))
        yield start, stop
        start = stop


def _of_singles(bodies: Sequence[memoryview]) -> _Columns | None:
    """The columns of bodies with one message each and no keys; None if one is something else.

    This is how a topic looks whose senders are slow. What counts is Python's work for each message,
    so there is as little of it as can be.
    """
    begin = _SINGLE.itemsize
    fixed = b"".join([body[:begin] for body in bodies])
    if len(fixed) != begin * len(bodies):
        return None
    rows = np.frombuffer(fixed, _SINGLE)
    if not (np.all(rows["runs"] == 1) and np.all(rows["messages"] == 1)) or rows["has_keys"].any():
        return None
    ends = (begin + rows["names"] + rows["metas"]).tolist()
    labels = [body[begin:end].tobytes() for body, end in zip(bodies, ends, strict=True)]
    # Equal labels are cut at the same place, since each half is a JSON array.
    cuts = dict(zip(labels, rows["names"].tolist(), strict=True))
    number = {label: index for index, label in enumerate(cuts)}
    label_of = np.array([number[label] for label in labels], np.int32)
    return _Columns(
        counts=rows["count"],
        seqs=np.ascontiguousarray(rows["seq"]),
        times=np.ascontiguousarray(rows["time"]),
        name_of=label_of,
        meta_of=label_of,
        lengths=rows["length"],
        payload=b"".join([body[end:] for body, end in zip(bodies, ends, strict=True)]),
        names=[orjson.loads(label[:cut])[0] for label, cut in cuts.items()],
        metas=[orjson.loads(label[cut:])[0] for label, cut in cuts.items()],
    )


class _Numbered:
    """JSON arrays of several bodies as one list; arrays that are equal share their place in it."""

    def __init__(self) -> None:
        self.values: list[object] = []
        self._known: dict[bytes, int] = {}
        self._bases: list[int] = []
        self._parts: list[memoryview] = []

    def add(self, raw: bytes, index: memoryview) -> None:
        """A body's array, and each run's index into it."""
        base = self._known.get(raw)
        if base is None:
            base = self._known[raw] = len(self.values)
            self.values += orjson.loads(raw)
        self._bases.append(base)
        self._parts.append(index)

    def index(self, runs: list[int]) -> np.ndarray:
        """Each run's index into `values`; `runs` says how many each body has."""
        index = np.frombuffer(_join(self._parts), "<u4").astype(np.int32)
        if len(self._bases) > 1:
            index += np.repeat(np.array(self._bases, np.int32), runs)
        return index


def _of_any(bodies: Sequence[memoryview]) -> _Columns:
    runs_of: list[int] = []
    counts: list[memoryview] = []
    seqs: list[memoryview] = []
    times: list[memoryview] = []
    lengths: list[memoryview] = []
    payloads: list[memoryview] = []
    names, metas = _Numbered(), _Numbered()
    keyed = False
    for body in bodies:
        runs, count, names_bytes, metas_bytes, keys_bytes, has_keys = PREFACE.unpack_from(body)
        at_names_of = PREFACE.size + 4 * runs
        at_metas_of = at_names_of + 4 * runs
        at_seqs = at_metas_of + 4 * runs
        at_times = at_seqs + 8 * runs
        at_lengths = at_times + 8 * runs
        at_names = at_lengths + (8 if has_keys else 4) * count
        at_metas = at_names + names_bytes
        at_keys = at_metas + metas_bytes
        runs_of.append(runs)
        counts.append(body[PREFACE.size : at_names_of])
        names.add(body[at_names:at_metas].tobytes(), body[at_names_of:at_metas_of])
        metas.add(body[at_metas:at_keys].tobytes(), body[at_metas_of:at_seqs])
        seqs.append(body[at_seqs:at_times])
        times.append(body[at_times:at_lengths])
        lengths.append(body[at_lengths : at_lengths + 4 * count])
        payloads.append(body[at_keys + keys_bytes :])
        keyed = keyed or bool(has_keys)
    return _Columns(
        counts=np.frombuffer(_join(counts), "<u4"),
        seqs=np.frombuffer(_join(seqs), "<i8"),
        times=np.frombuffer(_join(times), "<i8"),
        name_of=names.index(runs_of),
        meta_of=metas.index(runs_of),
        lengths=np.frombuffer(_join(lengths), "<u4"),
        payload=_join(payloads),
        names=names.values,  # type: ignore[arg-type]
        metas=metas.values,  # type: ignore[arg-type]
        keyed=keyed,
    )


def _join(parts: Sequence[memoryview]) -> Buffer:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _dictionary(values: list[str], index: np.ndarray) -> pa.Array:
    """`values[index]`, where the values may come more than once."""
    place = dict.fromkeys(values)
    if len(place) != len(values):
        number = {value: at for at, value in enumerate(place)}
        index = np.array([number[value] for value in values], np.int32)[index]
    buffers = [None, pa.py_buffer(index)]
    distinct = pa.array(list(place), _STRING)
    return pa.DictionaryArray.from_buffers(_NAME, len(index), buffers, distinct)


def offsets_array(first: int, count: int) -> pa.Array:
    return _plain(_INT64, np.arange(first, first + count, dtype=np.int64))


def _plain(kind: pa.DataType, values: np.ndarray) -> pa.Array:
    # Without pa.array's look at every argument: a topic of small frames makes many of these.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _binary(lengths: np.ndarray, data: Buffer, valid: np.ndarray | None = None) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths.view(np.int32), dtype=np.int32, out=ends[1:])  # without a detour by 64 bits
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(_BINARY, len(lengths), buffers)


def _keys(bodies: Sequence[memoryview]) -> pa.Array:
    lengths: list[Buffer] = []
    keys: list[memoryview] = []
    for body in bodies:
        runs, count, names_bytes, metas_bytes, keys_bytes, has_keys = PREFACE.unpack_from(body)
        at = PREFACE.size + runs * RUN_BYTES + 4 * count
        if not has_keys:
            lengths.append(_NO_KEY * count)
            continue
        lengths.append(body[at : at + 4 * count])
        at += 4 * count + names_bytes + metas_bytes
        keys.append(body[at : at + keys_bytes])
    sizes = np.frombuffer(b"".join(lengths), "<i4")
    return _binary(np.maximum(sizes, 0), _join(keys), sizes >= 0)


def _distinct(metas: list[dict[str, str]]) -> pa.Array | None:
    """None if all are empty."""
    if not any(metas):
        return None
    return pa.array([list(meta.items()) for meta in metas], SCHEMA.field("meta").type)


def _metas(distinct: pa.Array | None, meta_of: np.ndarray) -> pa.Array:
    if distinct is None:
        n = len(meta_of)
        return _no_metas(2 * PACKED_ROWS).slice(0, n) if n <= 2 * PACKED_ROWS else _no_metas(n)
    return distinct.take(pa.array(meta_of))


@lru_cache(maxsize=2)
def _no_metas(n: int) -> pa.Array:
    zeros = pa.array(np.zeros(n + 1, np.int32))
    empty = pa.array([], _STRING)
    return pa.MapArray.from_arrays(zeros, empty, empty)
