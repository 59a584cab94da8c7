"""Messages as JSON objects, the same in `penstock tail --json` and in the admin API.

    topic, partition, offset, time, id: {peer, stream, seq}, key, meta, payload

`payload` and `key` are text where they are UTF-8; where not, base64, and then `encoding` (or
`key_encoding`) says so. Whole columns are turned at once: a million rows take seconds, not minutes.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa


def rows(batch: pa.RecordBatch, topic: str, partition: int) -> Iterator[dict[str, Any]]:
    """One object a message, for a batch of `penstock.log.interface.SCHEMA`."""
    keys, keys_raw = _texts(batch.column("key"))
    payloads, payloads_raw = _texts(batch.column("payload"))
    columns = zip(
        batch.column("offset").to_numpy().tolist(),
        times(batch),
        _names(batch.column("peer")),
        _names(batch.column("stream")),
        batch.column("seq").to_numpy().tolist(),
        keys,
        metas(batch),
        payloads,
        strict=True,
    )
    for index, (offset, time, peer, stream, seq, key, meta, payload) in enumerate(columns):
        row = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "time": time,
            "id": {"peer": peer, "stream": stream, "seq": seq},
            "key": key,
            "meta": meta,
            "payload": payload,
        }
        if index in payloads_raw:
            row["encoding"] = "base64"
        if index in keys_raw:
            row["key_encoding"] = "base64"
        yield row


def json_lines(batch: pa.RecordBatch, topic: str, partition: int) -> list[bytes]:
    """One object a message, each with its newline."""
    dumps, newline = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    return [dumps(row, option=newline) for row in rows(batch, topic, partition)]


def times(batch: pa.RecordBatch) -> list[str]:
    """ISO 8601 in UTC, to the microsecond."""
    micros = batch.column("time").cast(pa.int64()).to_numpy(zero_copy_only=False)
    texts: list[str] = np.char.add(
        np.datetime_as_string(micros.astype("datetime64[us]")), "Z"
    ).tolist()
    return texts


def metas(batch: pa.RecordBatch) -> list[dict[str, str]]:
    column = cast("pa.MapArray[Any, Any]", batch.column("meta"))
    ends = column.offsets.to_numpy()
    if ends[-1] == ends[0]:
        return [{}] * len(column)
    first = int(ends[0])
    names: list[Any] = column.keys.slice(first, int(ends[-1]) - first).to_pylist()
    texts: list[Any] = column.items.slice(first, int(ends[-1]) - first).to_pylist()
    cuts = (ends - first).tolist()
    return [
        dict(zip(names[at:end], texts[at:end], strict=True)) for at, end in itertools.pairwise(cuts)
    ]


def _texts(column: pa.Array[Any]) -> tuple[list[str | None], set[int]]:
    """The values as text, and the positions of those that had to be base64."""
    texts: list[str | None] = []
    raw: set[int] = set()
    for index, value in enumerate(values(column)):
        if value is None:
            texts.append(None)
            continue
        try:
            texts.append(value.decode())
        except UnicodeDecodeError:
            texts.append(base64.b64encode(value).decode())
            raw.add(index)
    return texts, raw


def values(column: pa.Array[Any]) -> list[bytes | None]:
    """What a binary column holds."""
    if column.null_count == len(column):
        return [None] * len(column)
    if column.null_count:
        found: list[bytes | None] = column.to_pylist()
        return found
    # Cutting the column's own buffer is ten times as fast as asking for its values one by one.
    _, offsets, data = column.buffers()
    assert offsets is not None
    ends = np.frombuffer(memoryview(offsets), np.int32)[
        column.offset : column.offset + len(column) + 1
    ].tolist()
    blob = b"" if data is None else data.slice(ends[0], ends[-1] - ends[0]).to_pybytes()
    first = ends[0]
    return [blob[at - first : end - first] for at, end in itertools.pairwise(ends)]


def _names(column: pa.Array[Any]) -> list[str]:
    """A dictionary column's values: few different ones, many times."""
    encoded = cast("pa.DictionaryArray[Any, Any]", column)
    names: list[Any] = encoded.dictionary.to_pylist()
    return [names[index] for index in encoded.indices.to_numpy().tolist()]
