"""Codecs, encode, decode and compressor."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import zlib
from typing import Any

import msgpack
import pytest

from penstock.errors import ConfigError
from tests.spark.flows import Event, Ready, ends, outcome


def flow(codec: str, *links: str, sink: str = "{module: sink.dumper}") -> str:
    names = [f"l{n}" for n in range(len(links))]
    parts = "".join(f"  {name}: {link}\n" for name, link in zip(names, links, strict=True))
    steps = ["web", *names, "a"]
    pipes = [f"{one}: {{connect: {two}}}" for one, two in itertools.pairwise(steps)]
    return (
        "name: orders\ncomponents:\n"
        f"  web: {{module: receiver.http, codec: {codec}, params: {{bind: 127.0.0.1:7071}}}}\n"
        f"{parts}  a: {sink}\npipeline: {{{', '.join(pipes)}}}\n"
    )


def encode(name: str, more: str = "") -> str:
    return f"{{module: link.encode, params: {{format: {name}{more}}}}}"


def decode(name: str, more: str = "") -> str:
    return f"{{module: link.decode, params: {{format: {name}{more}}}}}"


def keep(condition: str) -> str:
    return f"{{module: link.filter, params: {{condition: {json.dumps(condition)}}}}}"


def payloads(rows: list[dict[str, Any]]) -> list[bytes]:
    return [row["payload"] for row in rows]


def wrong(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(row["offset"], row["reason"]) for row in rows if row["status"] == "invalid"]


CSV = "{csv: {columns: [id, name]}}"


def test_csv_with_columns(spark):
    given = [b'1,"a,""b"""', b"2,", b"3", b"4,x,y", b"", b"\xff,x", b'5,"x\ny"']
    rows = outcome(
        spark,
        flow(CSV, keep("CAST(id AS int) > 0 AND name IS NOT NULL")),
        [Event(one) for one in given],
    )
    assert [row["offset"] for row in rows if row["sink"]] == [0, 1, 6]
    assert wrong(rows) == [
        (2, "csv: 1 fields; expected 2: id, name"),
        (3, "csv: 3 fields; expected 2: id, name"),
        (4, "csv: 0 records; expected one"),
        (5, "csv: byte 0: not UTF-8"),
    ]


def test_csv_without_columns_is_an_array(spark):
    rows = outcome(
        spark, flow("csv", keep("value:[1]::string = 'b'")), [Event(b"a,b"), Event(b'"')]
    )
    assert ends(rows) == [(0, "a"), (1, "invalid")]


def test_csv_to_json_and_back(spark):
    given = [Event(b'1,"a,""b"""'), Event(b"2,")]
    rows = outcome(spark, flow(CSV, encode("json")), given)
    assert [json.loads(one) for one in payloads(rows)] == [
        {"id": "1", "name": 'a,"b"'},
        {"id": "2", "name": ""},
    ]
    rows = outcome(
        spark, flow(CSV, encode("json"), encode("csv", ", options: {delimiter: ';'}")), given
    )
    assert payloads(rows) == [b'1;"a,""b"""', b"2;"]


def test_msgpack_is_read_and_written(spark):
    given = [
        msgpack.packb({"n": 7, "b": b"\x00\xff", "list": [1, None]}),
        msgpack.packb({"n": 1}),
        b"\x81\xa1",
        msgpack.packb({"n": 9}) + b"\x00",
        b"\xc1",
    ]
    rows = outcome(
        spark,
        flow("msgpack", keep("value:n::int > 5"), encode("json")),
        [Event(one) for one in given],
    )
    assert ends(rows) == [(0, "a"), (2, "invalid"), (3, "invalid"), (4, "invalid")]
    assert json.loads(rows[0]["payload"]) == {"n": 7, "b": "AP8=", "list": [1, None]}
    assert [reason.split(":")[1].strip() for _, reason in wrong(rows)] == [
        "byte 2",
        "byte 4",
        "byte 0",
    ]
    rows = outcome(
        spark, flow("json", encode("msgpack")), [Event(b'{"a": [1, {"b": null}], "c": "d"}')]
    )
    assert msgpack.unpackb(rows[0]["payload"]) == {"a": [1, {"b": None}], "c": "d"}


def test_msgpack_with_columns(spark):
    text = flow("{msgpack: {schema_ddl: 'n BIGINT'}}", keep("n > 5"))
    rows = outcome(spark, text, [Event(msgpack.packb({"n": one})) for one in (7, 1, "x")])
    assert ends(rows) == [(0, "a"), (2, "invalid")]


def test_text_in_its_encodings(spark):
    given = [Event("Ä".encode()), Event("Ä".encode("latin-1")), Event(b"A")]
    assert ends(outcome(spark, flow("string", keep("length(value) = 1")), given)) == [
        (0, "a"),
        (1, "invalid"),
        (2, "a"),
    ]
    latin = flow("{string: {encoding: latin-1}}", keep("length(value) = 1"))
    assert ends(outcome(spark, latin, given)) == [(1, "a"), (2, "a")]
    ascii_only = flow("{string: {encoding: ascii}}", keep("length(value) = 1"))
    assert wrong(outcome(spark, ascii_only, given))[0] == (
        0,
        "string: byte 0: not ascii: ordinal not in range(128)",
    )


def test_decode_refuses_what_is_not_of_the_format(spark):
    rows = outcome(
        spark, flow("binary", decode("json")), [Event(b'{"a": 1}'), Event(b'{"a" 1}'), Event(b"")]
    )
    assert payloads(rows[:1]) == [b'{"a": 1}']
    assert wrong(rows) == [
        (1, "json: byte 5: not JSON: unexpected character"),
        (2, "json: byte 0: not JSON: input is a zero-length, empty document"),
    ] or [offset for offset, _ in wrong(rows)] == [1, 2]


def test_what_was_decoded_can_be_read_behind(spark):
    text = flow("binary", decode("json", ", options: {schema_ddl: 'n INT'}"), keep("n = 1"))
    assert ends(outcome(spark, text, [Event(b'{"n": 1}'), Event(b'{"n": 2}')])) == [(0, "a")]


def test_base64_there_and_back_and_the_codec_inside(spark):
    long = b'{"n": 1, "pad": "%s"}' % (b"x" * 200)
    rows = outcome(spark, flow("json", encode("base64")), [Event(long)])
    assert base64.b64decode(rows[0]["payload"], validate=True) == long
    text = flow("json", encode("base64"), decode("base64"), keep("value:n::int = 1"))
    assert payloads(outcome(spark, text, [Event(long)])) == [long]
    rows = outcome(
        spark,
        flow("binary", decode("base64")),
        [Event(b"YQ=="), Event(b"YQ"), Event(b"Y Q="), Event(b"Y$==")],
    )
    assert payloads(rows[:1]) == [b"a"]
    assert [offset for offset, _ in wrong(rows)] == [1, 2, 3]
    assert wrong(rows)[2][1].startswith("base64: byte 1: ")


@pytest.mark.parametrize("name", ["gzip", "zlib", "zstd", "snappy", "lz4"])
def test_packed_and_unpacked_payloads(spark, name):
    pack = f"{{module: link.compressor, params: {{algorithm: {name}}}}}"
    unpack = f"{{module: link.compressor, params: {{algorithm: {name}, direction: decompress, max_inflated: 200KB}}}}"
    given = [b"", b"x", b'{"n": 1}' + b" " * 100_000]
    packed = payloads(outcome(spark, flow("binary", pack), [Event(one) for one in given]))
    assert len(packed[2]) < 20_000
    if name == "gzip":
        assert [gzip.decompress(one) for one in packed] == given
    broken = [packed[2][:-3], b"", b"nonsense"]
    rows = outcome(spark, flow("binary", unpack), [Event(one) for one in [*packed, *broken]])
    assert [row["payload"] for row in rows if row["sink"]] == given
    assert [offset for offset, _ in wrong(rows)] == [3, 4, 5]
    assert wrong(rows)[1][1] == f"{name}: byte 0: expected {name} data, found an empty payload"
    inside = flow("json", pack, unpack, keep("value:n::int = 1"))
    assert payloads(outcome(spark, inside, [Event(given[2])])) == [given[2]]


def test_a_payload_that_unpacks_to_too_much_is_invalid(spark):
    unpack = "{module: link.compressor, params: {algorithm: zlib, direction: decompress, max_inflated: 1KB}}"
    [row] = outcome(spark, flow("binary", unpack), [Event(zlib.compress(b"x" * 5000))])
    assert "unpacks to more than the limit" in row["reason"]


def test_a_sink_gets_its_own_codec(spark):
    text = flow("json", sink="{module: sink.dumper, codec: msgpack}")
    rows = outcome(spark, text, [Event(b'{"a": 1}'), Event(b"{")])
    assert msgpack.unpackb(rows[0]["payload"]) == {"a": 1}
    assert ends(rows) == [(0, "a"), (1, "invalid")]
    assert rows[1]["branch"] == "a"


def test_a_sink_with_the_same_codec_gets_payloads_as_they_are(spark):
    text = flow("json", sink="{module: sink.dumper, codec: json}")
    assert payloads(outcome(spark, text, [Event(b"{")])) == [b"{"]


def test_bytes_cannot_become_values_by_themselves(spark):
    with pytest.raises(
        ConfigError, match="a: payloads that are mere bytes cannot be written as json"
    ):
        Ready(spark, flow("binary", sink="{module: sink.dumper, codec: json}"))
