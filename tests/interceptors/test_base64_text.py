"""`base64`."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage
from tests.interceptors.feeding import chain, cuts, feed, good, payloads, pieces, split

several = st.lists(st.binary(max_size=30), max_size=12)


@given(several, cuts)
def test_a_stream_in_base64_is_the_same_however_it_is_cut(sent, at):
    out = chain("base64")
    data = b"".join(bytes(out.wrap(payloads(piece)).blob) for piece in sent) + out.finish()
    assert data == b"".join(map(base64.b64encode, sent))
    assert b"".join(good(chain("base64"), *split(data, at))) == b"".join(sent)


@given(several, cuts)
def test_each_line_in_base64(sent, at):
    both = ("lines", {"keep_empty": True}), "base64"
    data = bytes(chain(*both).wrap(payloads(*sent)).blob)
    assert data == b"".join(base64.b64encode(piece) + b"\n" for piece in sent)
    assert good(chain(*both), *split(data, at)) == sent


@given(st.lists(st.text("AQg=-\r", max_size=9).map(str.encode), max_size=6))
def test_many_payloads_are_judged_as_one_by_one(sent):
    together, error = feed(chain("length_prefixed", "base64"), [prefixed(sent)])
    alone: list[bytes] = []
    alone_error = None
    for number, piece in enumerate(sent):
        try:
            alone += pieces(chain("base64", framed=True).feed(piece))
        except InvalidMessage as reason:
            alone_error = f"payload {number}: {reason}"
            break
    assert together == alone
    assert (str(error) if error else None) == alone_error


def prefixed(sent: list[bytes]) -> bytes:
    return bytes(chain("length_prefixed").wrap(payloads(*sent)).blob)


@given(st.text("AQg=-\r", max_size=12).map(str.encode))
def test_a_payload_is_decoded_exactly_if_python_would(data):
    try:
        expected = base64.b64decode(data, validate=True)
    except ValueError:
        expected = None
    # Python lets padding stand in for a whole group; RFC 4648 does not.
    if len(data) % 4 or data[len(data) // 4 * 4 - 4 :][:2].count(b"="):
        expected = None
    try:
        found = pieces(chain("base64", framed=True).feed(data))
    except InvalidMessage:
        found = [None]
    assert found == [expected]


@pytest.mark.parametrize(
    ("data", "position"),
    [
        (b"YQ=", 3),
        (b"YWI", 3),
        (b"Y", 1),
        (b"=", 0),
        (b"Y===", 1),
        (b"YQ=a", 3),
        (b"YWJj\nYWJj", 4),
        (b"YWJjYW-j", 6),
        (b"YW_j", 2),
        (b"YQ==YQ==", 4),
        (b"YQ==Y", 4),
        (b"YQ==\n", 4),
        (b"YWJj====", 4),
    ],
)
def test_what_is_not_base64_is_named_with_its_place(data, position):
    with pytest.raises(InvalidMessage, match=f"base64: byte {position}:"):
        chain("base64", framed=True).feed(data)


@pytest.mark.parametrize(
    ("data", "before", "position"),
    [
        (b"YWJjYW-j", b"abc", 6),
        (b"YWJj=", b"abc", 4),
        (b"YWJjY=", b"abc", 5),
        (b"YQ==YQ=a", b"a", 7),
        (b"YQ==YQ=", b"a", 7),
        (b"YQ==Y", b"a", 5),
    ],
)
def test_a_stream_gives_what_comes_before_the_first_wrong_byte(data, before, position):
    for chunks in ([data], [data[index : index + 1] for index in range(len(data))]):
        found, error = feed(chain("base64"), chunks)
        assert b"".join(found) == before
        assert f"base64: byte {position}:" in str(error)


def test_a_wrong_byte_is_found_before_its_group_is_whole():
    stream = chain("base64")
    with pytest.raises(InvalidMessage, match="byte 1:"):
        stream.feed(b"Y!")
