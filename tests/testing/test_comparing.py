"""What fits an expectation, and how it is said when something does not."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from penstock.flow.receipt import Branch, Receipt
from penstock.message import EventId
from penstock.status import Status
from penstock.testing import Outcome, Output
from penstock.testing.cases import CaseOptions
from penstock.testing.clock import START
from penstock.testing.comparing import differences


def case(**given: Any) -> CaseOptions:
    return TypeAdapter(CaseOptions).validate_python({"name": "a", **given})


def got(*payloads: str, **meta: str) -> Outcome:
    made = [
        Output(one.encode(), meta, b"k", START, EventId("web", "~test", index))
        for index, one in enumerate(payloads)
    ]
    return Outcome({"box": made}, {})


def said(case_: CaseOptions, outcome: Outcome) -> list[tuple[str, str, str]]:
    return [(one.where, one.expected, one.got) for one in differences(case_, outcome)]


@pytest.mark.parametrize(
    ("wanted", "payload"),
    [
        ({"text": "a"}, "a"),
        ({"contains": "b"}, "abc"),
        ({"json": '{"a":1}'}, '{"b": 2, "a": 1}'),
        ({"json": '{"a":{"b":[1,{}]}}'}, '{"a": {"b": [1, {"c": 1}], "d": 0}}'),
        ({"json": "1"}, "1.0"),
        ({"base64": "YQ=="}, "a"),
        ({"meta": {"x": "y"}, "key": "k"}, "anything"),
    ],
)
def test_a_message_fits(wanted: dict[str, Any], payload: str) -> None:
    assert said(case(expect={"box": [wanted]}), got(payload, x="y", z="0")) == []


@pytest.mark.parametrize(
    ("wanted", "payload"),
    [
        ({"text": "a"}, "b"),
        ({"contains": "b"}, "a"),
        ({"json": '{"a":1}'}, '{"a": 2}'),
        ({"json": '{"a":1}'}, '{"a": true}'),
        ({"json": '{"a":1}'}, "not json"),
        ({"json": "[1]"}, "[1, 2]"),
        ({"json": '{"a":null}'}, "{}"),
        ({"text": "a", "meta": {"x": "n"}}, "a"),
        ({"text": "a", "key": "other"}, "a"),
    ],
)
def test_a_message_does_not_fit(wanted: dict[str, Any], payload: str) -> None:
    assert len(said(case(expect={"box": [wanted]}), got(payload, x="y"))) == 1


def test_messages_are_compared_one_by_one() -> None:
    assert said(case(expect={"box": ["a", "b", "c"]}), got("a", "x")) == [
        ("box[1]", "'b'", "'x', of web/~test/1"),
        ("box[2]", "'c'", "nothing"),
    ]
    assert said(case(expect={"box": []}), got("a")) == [
        ("box[0]", "nothing", "'a', key 'k', of web/~test/0")
    ]


def test_in_any_order_every_expectation_finds_its_own_message() -> None:
    wanted = {"messages": [{"contains": "a"}, "a"], "order": "any"}
    assert said(case(expect={"box": wanted}), got("a", "ab")) == []
    assert said(case(expect={"box": wanted}), got("ab", "b")) == [
        ("box[1]", "'a'", "'b', of web/~test/1")
    ]


def test_messages_are_counted() -> None:
    assert said(case(expect={"box": {"count": 2}}), got("a", "b")) == []
    assert said(case(expect={"box": {"count": 1}}), got()) == [("box", "1 message", "0 messages")]


def test_statuses_are_compared_with_reasons_and_branches() -> None:
    branches = {"box": Branch(Status.FAILED, "the disk is full"), "kept": Branch(Status.DONE)}
    outcome = Outcome({}, {"web": [Receipt(Status.PARTIAL, "the disk is full", branches)]})
    fits = {"status": "partial", "reason": "full", "branches": {"box": "failed", "kept": "done"}}
    assert said(case(statuses={"web": [fits]}), outcome) == []
    assert said(case(statuses={"web": fits}), outcome) == []
    told = "partial (the disk is full); box: failed (the disk is full); kept: done"
    for wrong in ("done", {**fits, "reason": "empty"}, {**fits, "branches": {"box": "done"}}):
        [(where, _, found)] = said(case(statuses={"web": [wrong]}), outcome)
        assert (where, found) == ("web[0]", told)


def test_a_flow_that_was_broken_off_fails_unless_that_was_expected() -> None:
    outcome = Outcome({}, {"web": [Receipt(Status.NEW)]}, "broken off after 1 s")
    assert len(said(case(), outcome)) == 1
    assert said(case(statuses={"web": "new"}), outcome) == []
