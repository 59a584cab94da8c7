"""Addresses, sizes, times and spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.address import Address
from penstock.config.spelling import nearest
from penstock.config.units import parse_duration, parse_size, show_size


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:7071", "127.0.0.1", 7071),
        ("localhost:0", "localhost", 0),
        ("7071", "127.0.0.1", 7071),
        (":7071", "", 7071),
        ("*:7071", "", 7071),
        ("0.0.0.0:80", "0.0.0.0", 80),
        ("[::1]:80", "::1", 80),
        ("[::]:80", "::", 80),
        ("my-host.example.org:65535", "my-host.example.org", 65535),
    ],
)
def test_addresses_are_read_as_people_write_them(text, host, port):
    address = Address.parse(text)
    assert (address.host, address.port) == (host, port)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", "host:x", ":65536", "::1:80", "[::1", "[x]:1", "a b:1", "h:-1", "h:١"],
)
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match="expected an address"):
        Address.parse(text)


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        (":1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "10.0.0.1:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("127.0.0.1:1", "127.0.0.1:2", False),
        (":0", ":0", False),
    ],
)
def test_addresses_that_cannot_both_be_listened_on_overlap(one, other, clash):
    assert Address.parse(one).overlaps(Address.parse(other)) is clash
    assert Address.parse(other).overlaps(Address.parse(one)) is clash


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64KiB", 65536),
        ("10 MB", 10**7),
        ("1.5k", 1500),
        ("2G", 2 * 10**9),
        ("1Mi", 2**20),
    ],
)
def test_sizes_have_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "1KX", "1e3", "9" * 40])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="expected a"):
        parse_size(text)


@given(st.integers(0, 2**50))
def test_a_size_that_is_shown_reads_back_the_same(size):
    assert parse_size(show_size(size)) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300), ("2h", 7200), ("7d", 604_800)],
)
def test_times_have_units(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1y", "nan", "inf", "5M"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ValueError, match="expected a time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("tpc", "tcp"),
        ("Receiver", "receiver"),
        ("recevier", "receiver"),
        ("xyzzy", None),
        ("", None),
    ],
)
def test_the_nearest_spelling_is_found(wrong, right):
    assert nearest(wrong, ["tcp", "topic", "udp", "receiver", "http"]) == right
