"""Chains: the order of interceptors, streams and framed input, configuration."""

from __future__ import annotations

import base64
import gzip
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import ConfigError, InvalidMessage, TooLarge
from penstock.interceptors.chain import chain_factory
from penstock.interceptors.options import LinesOptions, SeparateOptions
from penstock.limits import MAX_LINE_BYTES, MAX_SEPARATED_BYTES
from tests.interceptors.feeding import NOTHING, chain, cuts, feed, good, payloads, pieces, split

PREFIXED = ["length_prefixed", "textual_length_prefixed"]
OTHERS = ["gzip", "decompress", "base64"]


def test_an_empty_chain_on_a_stream_makes_a_payload_of_every_read():
    stream = chain()
    assert stream.is_identity
    assert good(stream, b"one", b"", b"two") == [b"one", b"two"]
    assert pieces(stream.wrap(payloads(b"a", b"b"))) == [b"a", b"b"]
    assert stream.finish() == b""


def test_an_empty_chain_on_messages_keeps_even_empty_ones():
    assert good(chain(framed=True), b"one", b"", b"two") == [b"one", b"", b"two"]


def test_an_empty_chain_does_not_point_into_the_receive_buffer():
    buffer = bytearray(b"abc")
    found = chain().feed(memoryview(buffer))
    buffer[:] = b"???"
    assert pieces(found) == [b"abc"]
    found = chain().feed(buffer)
    buffer[:] = b"!!!"
    assert pieces(found) == [b"???"]


def test_any_interceptor_makes_a_chain_more_than_identity():
    assert not chain("lines").is_identity


def test_before_the_framing_the_stream_is_one_packed_run():
    data = gzip.compress(b"one\ntwo\nth") + gzip.compress(b"ree\n")
    assert good(chain("gzip", "lines"), data[:9], data[9:]) == [b"one", b"two", b"three"]


def test_after_the_framing_each_payload_is_packed_by_itself():
    sent = [b"one", b"two\n\n", b""]
    lengths = chain("length_prefixed")
    data = bytes(lengths.wrap(payloads(*map(gzip.compress, sent))).blob)
    assert good(chain("length_prefixed", "gzip"), data[:9], data[9:]) == sent


def test_framed_input_is_cut_message_by_message():
    stream = chain("lines", framed=True)
    assert pieces(stream.feed(b"a\nb")) == [b"a", b"b"]
    assert pieces(stream.feed(b"c\n")) == [b"c"]
    assert pieces(stream.flush()) == []
    assert stream.held_bytes == 0


def test_a_bad_message_does_not_spoil_the_next():
    stream = chain("gzip", "lines", framed=True)
    with pytest.raises(InvalidMessage):
        stream.feed(b"not packed")
    assert stream.failed is None
    assert pieces(stream.feed(gzip.compress(b"a\nb"))) == [b"a", b"b"]
    assert pieces(stream.flush()) == []


def test_a_message_with_one_bad_payload_is_refused_whole():
    stream = chain("lines", "base64", framed=True)
    with pytest.raises(InvalidMessage, match="payload 1: base64: byte 2"):
        stream.feed(b"YQ==\nYQ\nYQ==")
    with pytest.raises(InvalidMessage, match="payload 2: base64: byte 0"):
        stream.feed(b"YQ==\nYQ==\n!")
    assert pieces(stream.feed(b"YQ==\nYWI=")) == [b"a", b"ab"]


def test_a_bad_payload_on_a_stream_ends_it_after_those_before():
    stream = chain("lines", "base64")
    assert pieces(stream.feed(b"YQ==\n")) == [b"a"]
    assert pieces(stream.feed(b"YWI=\n!!!!\nYQ==\n")) == [b"ab"]
    assert "payload 2: base64: byte 0" in str(stream.failed)
    for call in (stream.flush, lambda: stream.feed(b"YQ==\n")):
        with pytest.raises(InvalidMessage, match="payload 2: base64: byte 0"):
            call()


def test_of_two_errors_in_a_chunk_the_first_in_the_stream_counts():
    stream = chain(("lines", {"max_length": 8}), "base64")
    assert pieces(stream.feed(b"YQ==\n!!!!\ntoo long for this")) == [b"a"]
    with pytest.raises(InvalidMessage, match="base64"):
        stream.flush()


def test_the_last_line_is_decoded_too():
    assert good(chain("lines", "base64"), b"YQ==\nYW", b"I=") == [b"a", b"ab"]
    _, error = feed(chain("lines", "base64"), [b"YQ==\nYW"])
    assert "payload 1: base64: byte 2" in str(error)


def test_an_error_at_the_end_is_raised_again():
    stream = chain("length_prefixed")
    stream.feed(b"\0")
    for _ in range(2):
        with pytest.raises(InvalidMessage, match="the end came 1 bytes into a frame"):
            stream.flush()


def test_framed_within_framed():
    inner = chain("length_prefixed", "lines")
    data = bytes(inner.wrap(payloads(b"a", b"b")).blob)
    assert data == b"\0\0\0\0\0\0\0\2a\n\0\0\0\0\0\0\0\2b\n"
    assert good(inner, data, b"\0\0\0\0\0\0\0\3c\nd", b"\0\0\0\0\0\0\0\0") == [
        b"a",
        b"b",
        b"c",
        b"d",
    ]


def test_nothing_to_send_sends_nothing():
    for names in (["lines"], ["gzip", "lines"], ["length_prefixed", "gzip"]):
        out = chain(*names)
        assert pieces(out.wrap(NOTHING)) == []
        assert out.finish() == b""


def test_a_payload_that_cannot_be_sent_leaves_the_chain_usable():
    out, back = chain("gzip", "lines"), chain("gzip", "lines")
    sent = bytes(out.wrap(payloads(b"first")).blob)
    with pytest.raises(InvalidMessage, match="cannot be sent"):
        out.wrap(payloads(b"good", b"not\ngood"))
    sent += bytes(out.wrap(payloads(b"second")).blob) + out.finish()
    assert good(back, sent) == [b"first", b"second"]


several = st.lists(st.binary(min_size=1, max_size=30), max_size=8)


orders = [list(some) for count in (1, 2) for some in permutations(OTHERS, count)]
CHAINS = [
    *([framing, *others] for framing in PREFIXED for others in orders),
    *([*others, framing] for framing in [*PREFIXED, "lines"] for others in orders),
    # What follows `lines` must not put line ends into what it sends.
    *(["lines", *others] for others in orders if others[0] == "base64"),
]


@pytest.mark.parametrize("names", CHAINS, ids=" ".join)
@settings(max_examples=20)
@given(sent=st.lists(several, max_size=3), at=cuts)
def test_every_chain_gives_back_what_it_sent(names, sent, at):
    if names[-1] == "lines":
        sent = [[base64.b64encode(piece) for piece in some] for some in sent]
    out = chain(*names)
    data = b"".join(bytes(out.wrap(payloads(*some)).blob) for some in sent) + out.finish()
    assert good(chain(*names), *split(data, at)) == [piece for some in sent for piece in some]


@pytest.mark.parametrize("names", [["gzip", "base64"], ["base64", "gzip"], ["length_prefixed"]])
@given(sent=several)
def test_every_payload_is_a_message_where_messages_are_kept_apart(names, sent):
    messages = pieces(chain(*names, framed=True).wrap(payloads(*sent)))
    assert len(messages) == len(sent)
    back = chain(*names, framed=True)
    assert [piece for message in messages for piece in pieces(back.feed(message))] == sent


def test_streams_do_not_share_state():
    make = chain_factory([("lines", {})], False)
    one, other = make(), make()
    one.feed(b"begun ")
    other.feed(b"another")
    assert pieces(one.feed(b"and ended\n")) == [b"begun and ended"]
    assert pieces(other.flush()) == [b"another"]


def test_options_come_as_models_or_as_maps():
    for options in (
        LinesOptions(max_length=3, keep_empty=True),
        {"max_length": 3, "keep_empty": 1},
    ):
        stream = chain_factory([("lines", options)], False)()
        assert pieces(stream.feed(b"abc\n\n")) == [b"abc", b""]
        with pytest.raises(TooLarge):
            stream.feed(b"abcd\n")
    stream = chain_factory([("separate", SeparateOptions(delimiter="→"))], False)()
    assert pieces(stream.feed("a→b→".encode())) == [b"a", b"b"]
    assert pieces(chain(("separate", {"separator": ";"})).feed(b"a;b;")) == [b"a", b"b"]


def test_defaults_are_those_of_the_options():
    with pytest.raises(TooLarge, match=str(MAX_LINE_BYTES)):
        chain("lines").feed(bytes(MAX_LINE_BYTES + 1))
    with pytest.raises(TooLarge, match=str(MAX_SEPARATED_BYTES)):
        chain("separate").feed(bytes(MAX_SEPARATED_BYTES + 1))


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (("line", {}), "no interceptor 'line'; did you mean 'lines'"),
        (("nothing like it", {}), "no interceptor 'nothing like it'$"),
        (("gelf_chunking", {}), "not there yet"),
        (("lines", {"max_lenght": 1}), "'lines', max_lenght: Extra"),
        (("lines", {"max_length": 0}), "'lines', max_length: .*greater"),
        (("separate", {"delimiter": ""}), "'separate', delimiter: "),
    ],
)
def test_a_wrong_configuration_is_refused_before_any_stream(spec, reason):
    with pytest.raises(ConfigError, match=reason):
        chain_factory([spec], False)
