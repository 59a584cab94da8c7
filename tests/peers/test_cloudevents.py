"""CloudEvents over HTTP: headers and bodies in, payloads and meta out."""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
import unicodedata

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidMessage, TooLarge
from penstock.limits import MAX_CLOUDEVENTS, MAX_HEADERS, MAX_STREAM_NAME_BYTES, MiB
from penstock.message import KEY_STREAM
from penstock.peers import cloudevents

HEADERS = {
    b"ce-specversion": b"1.0",
    b"ce-id": b"1234",
    b"ce-source": b"/shop/orders",
    b"ce-type": b"order.placed",
}
EVENT = {"specversion": "1.0", "id": "1234", "source": "/shop/orders", "type": "order.placed"}
META = {f"ce_{name}": value for name, value in EVENT.items()}


def binary(**more: bytes | None) -> dict[str, str] | None:
    """The meta of an event with these headers besides those that every event has."""
    headers = dict(HEADERS)
    for name, value in more.items():
        key = b"content-type" if name == "content_type" else b"ce-" + name.encode()
        if value is None:
            del headers[key]
        else:
            headers[key] = value
    return cloudevents.binary(list(headers.items()))


def structured(**more: object) -> tuple[bytes, dict[str, str]]:
    return cloudevents.structured(orjson.dumps(EVENT | more))


# --- Modes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content_type", "mode"),
    [
        ("application/json", "binary"),
        ("", "binary"),
        ("application/cloudevents+json", "structured"),
        ("Application/CloudEvents+JSON; charset=UTF-8", "structured"),
        ("application/cloudevents-batch+json", "batch"),
        ("application/cloudevents-batch+json;charset=utf-8", "batch"),
        ("application/cloudevents+avro", "unknown"),
        ("application/cloudevents-batch+xml", "unknown"),
        ("application/cloudevents", "unknown"),
    ],
)
def test_the_content_type_tells_the_mode(content_type, mode):
    assert cloudevents.mode(content_type) == mode


# --- Binary mode --------------------------------------------------------------------------------


def test_headers_become_meta():
    assert binary() == META
    assert binary(
        time=b"2018-04-05T17:31:00Z",
        subject=b"cart",
        dataschema=b"https://example.com/schema",
        comexample7=b"x",
        content_type=b"application/json; charset=utf-8",
    ) == META | {
        "ce_time": "2018-04-05T17:31:00Z",
        "ce_subject": "cart",
        "ce_dataschema": "https://example.com/schema",
        "ce_comexample7": "x",
        "ce_datacontenttype": "application/json; charset=utf-8",
    }


def test_header_names_are_not_case_sensitive():
    assert cloudevents.binary([(name.title(), value) for name, value in HEADERS.items()]) == META


def test_a_plain_request_is_no_event():
    assert cloudevents.binary([]) is None
    assert cloudevents.binary([(b"content-type", b"text/plain"), (b"ce-flavour", b"x")]) is None


@pytest.mark.parametrize("name", ["id", "source", "specversion", "type"])
def test_an_event_without_a_required_attribute_is_invalid(name):
    with pytest.raises(InvalidMessage, match=f"{name!r} is missing"):
        binary(**{name: None})
    with pytest.raises(InvalidMessage, match=f"{name!r} is missing"):
        cloudevents.structured(orjson.dumps({k: v for k, v in EVENT.items() if k != name}))
    with pytest.raises(InvalidMessage, match=f"{name!r} is missing"):
        structured(**{name: None})


def test_another_version_is_invalid():
    for version in ("0.3", "1.1", "1.0.0", ""):
        with pytest.raises(InvalidMessage, match=r"only '1\.0'"):
            binary(specversion=version.encode())
        with pytest.raises(InvalidMessage, match=r"only '1\.0'"):
            structured(specversion=version)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"Euro%20%E2%82%AC%20%F0%9F%98%80", "Euro \u20ac \U0001f600"),
        (b"%41%62c%2e", "Abc."),
        (b"100%25", "100%"),
        (b"%2525", "%25"),
        (b'"two words"', "two words"),
        (rb'"a \"quoted\" \\ word" and more', 'a "quoted" \\ word and more'),
        (b'"%20"', " "),
        ("Müller".encode(), "Müller"),
    ],
)
def test_header_values_are_unquoted_then_percent_decoded_once(sent, meant):
    meta = binary(subject=sent)
    assert meta is not None
    assert meta["ce_subject"] == meant


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("subject", b"%C0%A0", "not UTF-8"),
        ("subject", b"%ED%A0%80", "not UTF-8"),
        ("subject", b"\xff", "not UTF-8"),
        ("subject", b"50%", "two hexadecimal digits"),
        ("subject", b"%zz", "two hexadecimal digits"),
        ("subject", b'"half', "does not end"),
        ("subject", b'half"', "does not end"),
        ("subject", b'"half\\"', "does not end"),
        ("subject", b"%00", r"U\+0000"),
        ("subject", b"a%0Ab", r"U\+000A"),
        ("subject", b"%7F", r"U\+007F"),
        ("subject", b"%C2%85", r"U\+0085"),
        ("subject", b"%EF%BF%BF", r"U\+FFFF"),
        ("subject", b"", "'subject' must be"),
        ("id", b"", "'id' must be"),
        ("type", b"", "'type' must be"),
        ("source", b"", "'source' must be a URI reference"),
        ("source", b"two%20words", "'source' must be a URI reference"),
        ("source", b"%25zz", "'source' must be a URI reference"),
        ("dataschema", b"/not/absolute", "'dataschema' must be an absolute URI"),
        ("time", b"yesterday", "'time' must be"),
        ("time", b"2018-02-30T00:00:00Z", "'time' must be"),
        ("time", b"2018-04-05T17:31:00", "'time' must be"),
        ("time", b"2018-04-05 17:31:00Z", "'time' must be"),
        ("time", b"2018-04-05T25:31:00Z", "'time' must be"),
        ("time", b"2018-04-05T17:31:61Z", "'time' must be"),
        ("time", "٢018-04-05T17:31:00Z".encode(), "'time' must be"),
        ("content_type", b"json", "'datacontenttype' must be a media type"),
        ("content_type", b"", "'datacontenttype' must be a media type"),
        ("datacontenttype", b"text/plain", "use the header content-type"),
        ("data", b"x", "'data' cannot be an attribute"),
        ("with-dash", b"x", "'with-dash' cannot be an attribute"),
        ("with_line", b"x", "'with_line' cannot be an attribute"),
        ("", b"x", "'' cannot be an attribute"),
    ],
)
def test_a_header_that_breaks_the_rules_is_named(name, value, reason):
    with pytest.raises(InvalidMessage, match=reason):
        binary(**{name: value})


def test_a_header_that_is_there_twice_is_invalid():
    with pytest.raises(InvalidMessage, match="ce-id is there twice"):
        cloudevents.binary([*HEADERS.items(), (b"CE-ID", b"5678")])


@pytest.mark.parametrize(
    "time",
    [
        "2018-04-05T17:31:00Z",
        "2018-04-05t17:31:00.123456789z",
        "1990-12-31T23:59:60Z",
        "1996-12-19T16:39:57-08:00",
    ],
)
def test_times_are_checked_and_kept_as_they_are(time):
    _, meta = structured(time=time)
    assert meta["ce_time"] == time


@given(st.text(min_size=1))
def test_any_text_survives_percent_encoding(text):
    sent = "".join(f"%{byte:02X}" for byte in text.encode()).encode()
    try:
        meta = binary(subject=sent)
    except InvalidMessage:
        # Only control characters and what is no character at all are refused.
        assert any(unicodedata.category(character) in ("Cc", "Cn") for character in text)
    else:
        assert meta is not None
        assert meta["ce_subject"] == text


# --- Structured mode ----------------------------------------------------------------------------


def test_data_is_kept_as_the_very_text_that_was_sent():
    for data in (
        '{"b": 1.50, "a" : 123456789012345678901234567890}',
        "1e400",
        "-0.0",
        '"text"',
        "null",
        "[ ]",
        '"\\u00e9 \\ud83d\\ude00"',
        "1" * 5000,
    ):
        body = orjson.dumps(EVENT)[:-1] + b',"data":  ' + data.encode() + b" }"
        payload, meta = cloudevents.structured(body)
        assert payload == data.encode()
        assert meta == META | {"ce_datacontenttype": "application/json"}


def test_data_of_a_json_type_stays_json():
    for content_type in ("application/json", "text/JSON; charset=utf-8", "application/vnd.x+json"):
        payload, meta = structured(datacontenttype=content_type, data="quoted")
        assert payload == b'"quoted"'
        assert meta["ce_datacontenttype"] == content_type


def test_data_of_another_type_is_the_text_of_the_string():
    payload, meta = structured(datacontenttype="application/xml", data='<much wow="xml"/>é')
    assert payload == '<much wow="xml"/>é'.encode()
    assert meta == META | {"ce_datacontenttype": "application/xml"}
    for data in ({}, 1, None, True):
        with pytest.raises(InvalidMessage, match="must be a string"):
            structured(datacontenttype="application/xml", data=data)


def test_data_in_base64_is_decoded():
    payload, meta = structured(data_base64=base64.b64encode(b"\0\xff").decode())
    assert payload == b"\0\xff"
    assert meta == META
    for wrong in ("A", "AA=", "AA==AA==", "A A=", "AAAA\n", "é", 5, {}):
        with pytest.raises(InvalidMessage, match="data_base64"):
            structured(data_base64=wrong)


def test_data_comes_one_way_only():
    with pytest.raises(InvalidMessage, match="only one"):
        structured(data=None, data_base64="")
    assert structured(data=1, data_base64=None)[0] == b"1"


def test_an_event_without_data_has_an_empty_payload():
    assert structured() == (b"", META)


def test_extensions_become_text():
    _, meta = structured(yes=True, no=False, number=-5, text="x", unset=None)
    assert meta == META | {"ce_yes": "true", "ce_no": "false", "ce_number": "-5", "ce_text": "x"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"ext": 1.5},
        {"ext": 2**31},
        {"ext": -(2**31) - 1},
        {"ext": {}},
        {"ext": []},
        {"Ext": "x"},
        {"ext_": "x"},
        {"_": None},
        {"ext": "a\u0007"},
        {"id": 5},
        {"source": True},
        {"specversion": 1.0},
        {"specversion": 1},
        {"time": 0},
        {"datacontenttype": "text", "data": "x"},
        {"subject": ""},
        {"dataschema": "relative"},
    ],
    ids=str,
)
def test_a_member_that_breaks_the_rules_is_invalid(wrong):
    with pytest.raises(InvalidMessage, match="CloudEvent"):
        structured(**wrong)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"{",
        b'{"id"}',
        b'{"id":}',
        b'{"id":"a",}',
        b"{1:2}",
        b'{"id":NaN}',
        b'{"id":"a" "type":"b"}',
        b'{"id":"a"]',
        orjson.dumps(EVENT) + b"x",
        orjson.dumps(EVENT) + orjson.dumps(EVENT),
        orjson.dumps(EVENT)[:-1],
        orjson.dumps(EVENT)[:-1] + b',"data":Infinity}',
        orjson.dumps(EVENT)[:-1] + b',"data":"\n"}',
        orjson.dumps(EVENT)[:-1] + b',"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        orjson.dumps(EVENT)[:-1] + b',"id":"again"}',
        orjson.dumps(EVENT)[:-1] + b',"subject":"\\ud800"}',
        orjson.dumps(EVENT)[:-1] + b',"datacontenttype":"text/plain","data":"\\ud800"}',
    ],
    ids=range(22),
)
def test_a_body_that_is_no_event_is_invalid(body):
    with pytest.raises(InvalidMessage, match="CloudEvent"):
        cloudevents.structured(body)


def test_an_event_has_no_more_attributes_than_a_request_has_headers():
    with pytest.raises(TooLarge, match=f"more than {MAX_HEADERS} attributes"):
        structured(**{f"x{number}": number for number in range(MAX_HEADERS)})


def test_a_name_may_be_written_with_escapes():
    body = orjson.dumps(EVENT).replace(b'"id"', b'"\\u0069d" ')
    assert cloudevents.structured(body) == (b"", META)


def test_white_space_is_free():
    body = json.dumps(EVENT | {"data": [1, 2]}, indent=3).encode()
    payload, meta = cloudevents.structured(memoryview(b" \n\t" + body + b"\r\n"))
    assert orjson.loads(payload) == [1, 2]
    assert meta == META | {"ce_datacontenttype": "application/json"}


# --- Batch mode ---------------------------------------------------------------------------------


def test_a_batch_keeps_its_order():
    body = orjson.dumps([EVENT | {"id": str(number), "data": number} for number in range(5)])
    events = cloudevents.batch(body)
    assert [payload for payload, _ in events] == [b"0", b"1", b"2", b"3", b"4"]
    assert [meta["ce_id"] for _, meta in events] == ["0", "1", "2", "3", "4"]
    assert cloudevents.batch(b" [ ] ") == []


def test_a_batch_with_one_bad_event_is_refused_whole():
    with pytest.raises(InvalidMessage, match=r"event 1 of the batch: .*'id' must be a string"):
        cloudevents.batch(orjson.dumps([EVENT, EVENT | {"id": 1}, EVENT]))


@pytest.mark.parametrize("body", [b"{}", b"[", b"[,]", b"[1]", b"[{}]", b"[]]", b"", b"[[]]"])
def test_a_body_that_is_no_batch_is_invalid(body):
    with pytest.raises(InvalidMessage, match="CloudEvent"):
        cloudevents.batch(body)
    event = orjson.dumps(EVENT)
    for wrong in (
        b"[%s,]" % event,
        b"[%s %s]" % (event, event),
        b"[%s" % event,
        b"[%s,,1]" % event,
    ):
        with pytest.raises(InvalidMessage, match="CloudEvent"):
            cloudevents.batch(wrong)


def test_a_batch_has_a_limit():
    body = orjson.dumps([EVENT] * 3)
    assert len(cloudevents.batch(body, max_events=3)) == 3
    with pytest.raises(TooLarge, match="2 events"):
        cloudevents.batch(body, max_events=2)
    with pytest.raises(TooLarge):
        cloudevents.batch(b"[" + b",".join([orjson.dumps(EVENT)] * (MAX_CLOUDEVENTS + 1)) + b"]")


def test_a_batch_of_nonsense_ends_at_once():
    body = b"[" + b"{}," * (4 * MiB) + b"{}]"
    tracemalloc.start()
    try:
        with pytest.raises(InvalidMessage, match="event 0"):
            cloudevents.batch(body)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * len(body)


# --- Identity -----------------------------------------------------------------------------------


def test_the_same_source_and_id_are_the_same_event():
    meta = binary()
    assert meta is not None
    assert cloudevents.idempotency_key(meta) == "/shop/orders 1234"
    assert cloudevents.idempotency_key(structured(data=1)[1]) == "/shop/orders 1234"


@given(st.text(max_size=200), st.text(max_size=200), st.sampled_from(["a", "a/b"]))
def test_keys_differ_where_events_differ_and_fit_their_place(one, other, source):
    keys = [
        cloudevents.idempotency_key({"ce_source": source, "ce_id": id_}) for id_ in (one, other)
    ]
    assert (keys[0] == keys[1]) == (one == other)
    for key in keys:
        assert key.isprintable()
        assert len((KEY_STREAM + key).encode()) <= MAX_STREAM_NAME_BYTES


# --- Anything at all ----------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from([*EVENT, "data", "data_base64", "time", "subject", "ext"]) | st.text()
bodies = (
    st.binary()
    | st.dictionaries(names, values).map(lambda some: json.dumps(EVENT | some).encode())
    | st.lists(st.dictionaries(names, values).map(lambda some: EVENT | some)).map(
        lambda some: json.dumps(some).encode()
    )
    | st.lists(st.sampled_from([*'{}[]:,"1 \\uen-.', '"id"', '"data"'])).map(
        lambda some: "".join(some).encode()
    )
)


def check(payload: bytes, meta: dict[str, str]) -> None:
    assert type(payload) is bytes
    assert all(type(key) is str and type(value) is str for key, value in meta.items())
    assert META.keys() <= meta.keys()
    orjson.dumps(meta)


@given(bodies)
def test_any_body_gives_events_or_invalid_message(body):
    with contextlib.suppress(InvalidMessage):
        check(*cloudevents.structured(body))
    with contextlib.suppress(InvalidMessage):
        for event in cloudevents.batch(body):
            check(*event)


headers = st.lists(
    st.tuples(
        st.sampled_from([*HEADERS, b"content-type", b"ce-time", b"ce-ext"]) | st.binary(),
        st.sampled_from([b"1.0", b"/a", b'"', b"%"]) | st.binary(),
    )
)


@given(headers)
def test_any_headers_give_meta_or_invalid_message(some):
    for every in (some, [*HEADERS.items(), *some]):
        try:
            meta = cloudevents.binary(every)
        except InvalidMessage:
            continue
        assert meta is None or META.keys() <= meta.keys()


@given(values)
def test_json_data_means_the_same_afterwards(data):
    try:
        body = orjson.dumps(EVENT | {"data": data})
    except TypeError:
        return  # what orjson cannot write
    payload, _ = cloudevents.structured(body)
    assert orjson.loads(payload) == orjson.loads(body)["data"]
