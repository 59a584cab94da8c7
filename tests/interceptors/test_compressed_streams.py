"""`gzip` and `decompress`."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zlib

import google_crc32c
import lz4.frame
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, TooLarge
from penstock.interceptors.inflate import zstd
from penstock.limits import MiB
from tests.interceptors.feeding import chain, cuts, feed, good, payloads, pieces, split


def snappy_chunk(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + len(body).to_bytes(3, "little") + body


def masked(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


SNAPPY_START = b"\xff\x06\x00\x00sNaPpY"


def snappy(data: bytes) -> bytes:
    """As the framing format wants it, every other chunk not packed."""
    chunks = [SNAPPY_START]
    for index, at in enumerate(range(0, len(data), 65_536)):
        part = data[at : at + 65_536]
        if index % 2:
            chunks.append(snappy_chunk(1, masked(part) + part))
        else:
            packed = pa.Codec("snappy").compress(part, asbytes=True)
            chunks.append(snappy_chunk(0, masked(part) + packed))
    return b"".join(chunks)


PACKERS = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": zstd.compress,
    "lz4": lz4.frame.compress,
    "snappy": snappy,
}
formats = pytest.mark.parametrize("pack", PACKERS.values(), ids=PACKERS)
content = st.binary(max_size=300) | st.integers(0, 200_000).map(lambda size: b"some text " * size)


@formats
@given(parts=st.lists(content, min_size=1, max_size=3), at=cuts)
def test_a_packed_stream_is_the_same_however_it_is_cut(pack, parts, at):
    data = b"".join(map(pack, parts))
    assert b"".join(good(chain("decompress"), *split(data, at))) == b"".join(parts)


@formats
@given(parts=st.lists(content, min_size=1, max_size=3))
def test_a_packed_payload_is_unpacked_by_itself(pack, parts):
    data = b"".join(map(pack, parts))
    assert pieces(chain("decompress", framed=True).feed(data)) == [b"".join(parts)]


@formats
def test_lines_in_a_packed_stream(pack):
    lines = [b"line %d" % number for number in range(10_000)]
    data = pack(b"\n".join(lines))
    assert good(chain("decompress", "lines"), *split(data, range(0, len(data), 100))) == lines


@formats
def test_each_packed_frame_of_a_stream(pack):
    sent = [b"", b"a", b"b" * 1000]
    framed = chain("length_prefixed").wrap(payloads(*map(pack, sent))).blob
    assert good(chain("length_prefixed", "decompress"), framed[:50], framed[50:]) == sent


@formats
@given(cut=st.integers(1, 1000))
def test_a_packed_stream_that_ends_early_is_invalid(pack, cut):
    data = pack(b"something long enough to be cut short anywhere" * 3)
    # Snappy's stream may end after its identifier; so may none of the others anywhere.
    short = data[: max(11, len(data) - cut)]
    if short == data:
        return
    _, error = feed(chain("decompress"), [short])
    assert type(error) is InvalidMessage
    assert "in the middle of" in str(error)
    with pytest.raises(InvalidMessage):
        chain("decompress", framed=True).feed(short)


@formats
@pytest.mark.parametrize("rest", [b"garbage", b"\0" * 20, b"\x02\0\0\0"])
def test_garbage_after_packed_data_is_invalid(pack, rest):
    found, error = feed(chain("decompress", "lines"), [pack(b"a\nb\n") + rest])
    # Snappy has no end mark, so to its reader this is damage in the middle of the stream.
    assert found == ([] if pack is snappy else [b"a", b"b"])
    assert type(error) is InvalidMessage
    with pytest.raises(InvalidMessage):
        chain("decompress", framed=True).feed(pack(b"a\nb\n") + rest)


@formats
@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_damage_is_reported_or_harmless(pack, place, flip):
    content = b"0123456789" * 20
    data = bytearray(pack(content))
    data[place % len(data)] ^= flip
    # Some bytes say nothing about the content (gzip's time stamp), and formats without a checksum
    # by default (zstd, lz4) let some damage through; nothing else than InvalidMessage may come.
    _, error = feed(chain("decompress"), [bytes(data)])
    assert error is None or isinstance(error, InvalidMessage)


@formats
def test_a_bomb_ends_at_the_limit(pack):
    bomb = pack(bytes(64 * MiB))
    stream = chain(("decompress", {"max_inflated": "2MiB"}))
    payload = chain(("decompress", {"max_inflated": "2MiB"}), framed=True)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge, match="max_inflated"):
            payload.feed(bomb)
        assert len(stream.feed(bomb).blob) <= 2 * MiB
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(stream.failed, TooLarge)
    assert peak_bytes < 16 * MiB


@formats
def test_exactly_the_limit_is_allowed(pack):
    for size in (1, 1000, 2 * MiB):
        limited = chain(("decompress", {"max_inflated": size}), framed=True)
        assert pieces(limited.feed(pack(bytes(size)))) == [bytes(size)]
        with pytest.raises(TooLarge):
            limited.feed(pack(bytes(size + 1)))


def test_the_limit_on_a_stream_is_for_each_chunk_and_not_for_its_life():
    packer = zlib.compressobj(wbits=31)
    stream = chain(("gzip", {"max_inflated": 1000}))
    for _ in range(100):
        chunk = packer.compress(bytes(900)) + packer.flush(zlib.Z_SYNC_FLUSH)
        assert pieces(stream.feed(chunk)) == [bytes(900)]


def test_a_zstd_frame_that_wants_too_much_memory_is_refused():
    options = {zstd.CompressionParameter.window_log: 27}
    packer = zstd.ZstdCompressor(options=options)
    data = packer.compress(bytes(1000)) + packer.flush(zstd.ZstdCompressor.FLUSH_FRAME)
    with pytest.raises(InvalidMessage, match="too much memory"):
        chain("decompress", framed=True).feed(data)


def test_a_run_of_tiny_members_is_one_stream():
    data = gzip.compress(b"x") * 20_000
    assert b"".join(good(chain("gzip"), data)) == b"x" * 20_000


def test_what_is_not_packed_passes_as_it_is():
    for plain in (b"", b"plain text", b"x", b"\x1f", b"\xff\x06\x00\x00sNaP", b"\x28\xb5"):
        assert pieces(chain("decompress", framed=True).feed(plain)) == [plain]
        chunks = [plain[index : index + 1] for index in range(len(plain))]
        assert b"".join(good(chain("decompress"), *chunks)) == plain
    assert good(chain("decompress", "lines"), b"x", b"yz\nabc") == [b"xyz", b"abc"]


def test_gzip_takes_nothing_but_gzip():
    for other in (b"plain", zlib.compress(b"a"), b""):
        with pytest.raises(InvalidMessage, match="gzip"):
            chain("gzip", framed=True).feed(other)
    with pytest.raises(InvalidMessage, match="gzip: after byte 0: not gzip"):
        chain("gzip").feed(b"plain")


def test_a_gzip_stream_of_nothing_is_fine():
    assert good(chain("gzip")) == []
    assert good(chain("gzip"), gzip.compress(b"")) == []


@pytest.mark.parametrize("name", ["gzip", "decompress"])
@given(sent=st.lists(content, max_size=4), at=cuts)
def test_a_stream_that_was_sent_arrives_as_it_was(name, sent, at):
    out = chain(name)
    data = b"".join(bytes(out.wrap(payloads(piece)).blob) for piece in sent) + out.finish()
    assert b"".join(good(chain(name), *split(data, at))) == b"".join(sent)


@pytest.mark.parametrize("name", ["gzip", "decompress"])
@given(sent=st.lists(content | content.map(gzip.compress) | content.map(zstd.compress), max_size=4))
def test_payloads_that_were_sent_arrive_as_they_were(name, sent):
    out = chain(name, framed=True)
    messages = pieces(out.wrap(payloads(*sent)))
    assert [pieces(chain(name, framed=True).feed(message)) for message in messages] == [
        [piece] for piece in sent
    ]


@pytest.mark.parametrize("start", [b"\x1f", b"\x1f\x8b", b"x", b"x\x9c", b"\xff\x06"])
def test_what_looks_packed_is_packed_on_the_way_out(start):
    out = chain("decompress")
    data = bytes(out.wrap(payloads(start)).blob) + bytes(out.wrap(payloads(b"rest")).blob)
    assert b"".join(good(chain("decompress"), data + out.finish())) == start + b"rest"


def test_what_was_sent_can_be_read_before_the_stream_ends():
    out, back = chain("gzip", "lines"), chain("gzip", "lines")
    for number in range(5):
        line = b"line %d" % number
        assert pieces(back.feed(out.wrap(payloads(line)).blob)) == [line]
    assert pieces(back.feed(out.finish())) == []
    assert pieces(back.flush()) == []


def test_the_level_is_for_the_way_out():
    data = bytes(range(256)) * 200
    fast, small = (
        chain(("gzip", {"level": level}), framed=True).wrap(payloads(data)) for level in (1, 9)
    )
    assert len(small.blob) < len(fast.blob)


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (snappy_chunk(0xFF, b"sNaPpX"), "identifier is wrong"),
        (snappy_chunk(0xFF, b"sNaPp"), "cannot have 5 bytes"),
        (snappy_chunk(0x02, b"abc"), "unknown type 0x02"),
        (snappy_chunk(0x01, b"abc"), "cannot have 3 bytes"),
        (snappy_chunk(0x01, b"\0\0\0\0abc"), "checksum"),
        (snappy_chunk(0x01, bytes(65_541)), "cannot have 65541 bytes"),
        (b"\x00\xff\xff\xff", "cannot have 16777215 bytes"),
        (snappy_chunk(0x00, bytes(4)), "without a size"),
        (snappy_chunk(0x00, bytes(4) + b"\xff" * 5), "without a size"),
        (snappy_chunk(0x00, bytes(4) + b"\x81\x80\x04"), "a block of 65537 bytes"),
        (snappy_chunk(0x00, bytes(4) + b"\x05\xff\xff"), "not snappy"),
    ],
)
def test_a_bad_snappy_chunk_is_named(chunk, reason):
    with pytest.raises(InvalidMessage, match=reason):
        chain("decompress", framed=True).feed(SNAPPY_START + chunk)


def test_snappy_chunks_to_be_skipped_are_skipped():
    padding = snappy_chunk(0xFE, bytes(100_000)) + snappy_chunk(0x80, b"") + SNAPPY_START
    data = snappy(b"abc") + padding + snappy(b"def")
    assert b"".join(good(chain("decompress"), *split(data, range(0, 100_000, 999)))) == b"abcdef"
    stream = chain("decompress")
    stream.feed(data[:50_000])
    with pytest.raises(InvalidMessage, match="in the middle of snappy"):
        stream.flush()
