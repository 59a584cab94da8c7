"""Links that choose: fanout and replicator. A replay chooses the same."""

from __future__ import annotations

from collections import Counter

import pytest
import xxhash

from penstock.sinks.task import COUNTER
from tests.spark.flows import Event, Ready, ends, frame, outcome, plan_of


def flow(link: str, targets: str, more: str = "", route: str = "web: {connect: link}") -> str:
    names = targets.split()
    sinks = "".join(
        f"  {name}: {{module: sink.dumper}}\n" for name in names if f" {name}:" not in more
    )
    return (
        "name: orders\ncomponents:\n"
        "  web: {module: receiver.http, params: {bind: 127.0.0.1:7071}}\n"
        f"  link: {link}\n{sinks}{more}"
        f"pipeline: {{{route}, link: {{links: [{', '.join(names)}]}}}}\n"
    )


FANOUT = flow("{module: link.fanout}", "a b c")


def counted(run: Ready, spark, events, counters=None):
    """Where events went, by partition and in order; and where the counters have come to."""
    rows = run.finished(frame(spark, events), counters)
    ended = {row["reason"]: row["seq"] for row in rows if row["status"] == COUNTER}
    went = sorted((row["partition"], row["offset"], row["sink"]) for row in rows if row["sink"])
    return [sink for _, _, sink in went], ended


def test_the_destination_changes_after_every_event_and_over_batches(spark):
    run = Ready(spark, FANOUT)
    first, counters = counted(run, spark, [Event()] * 4)
    assert first == ["a", "b", "c", "a"]
    assert counters == {"link orders.web/0": 1}
    second, after = counted(run, spark, [Event(offset=4 + n) for n in range(3)], counters)
    assert second == ["b", "c", "a"]
    again, same = counted(run, spark, [Event(offset=4 + n) for n in range(3)], counters)
    assert (again, same) == (second, after)


def test_every_partition_takes_its_own_turns(spark):
    events = [Event(partition=n % 2, offset=n // 2) for n in range(8)]
    went, counters = counted(Ready(spark, FANOUT), spark, events, {"link orders.web/1": 2})
    assert went == ["a", "b", "c", "a", "c", "a", "b", "c"]
    assert counters == {"link orders.web/0": 1, "link orders.web/1": 0}


def test_only_events_that_come_there_take_turns(spark):
    more = "  even: {module: link.filter, params: {condition: 'offset % 2 = 0'}}\n"
    text = flow("{module: link.fanout}", "a b", more, "web: {connect: even}, even: {connect: link}")
    went, _ = counted(Ready(spark, text), spark, [Event()] * 8)
    assert went == ["a", "b", "a", "b"]


def test_links_can_stand_behind_a_fanout(spark):
    more = "  b: {module: link.filter, params: {condition: 'offset > 1'}}\n  c: {module: sink.dumper}\n"
    text = flow("{module: link.fanout}", "a b", more).replace(
        "link: {links", "b: {connect: c}, link: {links"
    )
    assert ends(outcome(spark, text, [Event()] * 4)) == [
        (0, "a"),
        (2, "a"),
        (3, "c"),
    ]


def replicated(targets: str, replicas: int, key: str = "") -> str:
    return flow(f"{{module: link.replicator, params: {{replicas: {replicas}{key}}}}}", targets)


EVENTS = [Event(b"%d" % n, {"user": str(n % 50)}) for n in range(200)]


def choices(spark, text: str) -> list[frozenset[str]]:
    found: dict[int, set[str]] = {}
    for offset, sink in ends(outcome(spark, text, EVENTS)):
        found.setdefault(offset, set()).add(sink)
    return [frozenset(found[offset]) for offset in range(len(EVENTS))]


@pytest.fixture(scope="module")
def two_of_four(spark):
    return choices(spark, replicated("a b c d", 2))


def test_as_many_copies_as_asked_for_spread_evenly(two_of_four):
    assert {len(chosen) for chosen in two_of_four} == {2}
    shares = Counter(sink for chosen in two_of_four for sink in chosen)
    assert all(60 < shares[sink] < 140 for sink in "abcd")


def test_the_choice_is_a_known_hash(two_of_four):
    for event, chosen in zip(EVENTS, two_of_four, strict=True):
        assert chosen == frozenset(sorted("abcd", key=lambda name: score(event, name))[-2:])


def score(event: Event, target: str) -> int:
    """What Spark's xxhash64 gives: seed 42, a long as eight bytes, little-endian; signed."""
    inner = xxhash.xxh64_intdigest(event.payload, 42)
    first = xxhash.xxh64_intdigest(inner.to_bytes(8, "little"), 42)
    found = xxhash.xxh64_intdigest(target.encode(), first)
    return found - (1 << 64) if found >> 63 else found


def test_a_link_more_moves_few(spark, two_of_four):
    five = choices(spark, replicated("a b c d e", 2))
    for before, after in zip(two_of_four, five, strict=True):
        assert len(after - before) <= 1
        assert after - before <= {"e"}
    moved = sum(before != after for before, after in zip(two_of_four, five, strict=True))
    assert 40 < moved < 120  # two fifths of them, about


def test_the_key_can_be_a_meta_attribute(spark):
    chosen = choices(spark, replicated("a b c d", 1, ", hash_key: user"))
    by_user: dict[str, set[frozenset[str]]] = {}
    for event, sinks in zip(EVENTS, chosen, strict=True):
        by_user.setdefault(event.meta["user"], set()).add(sinks)
    assert all(len(found) == 1 for found in by_user.values())
    assert len({sinks for found in by_user.values() for sinks in found}) == 4


def test_copies_of_a_replicator_compose(spark):
    [piece] = plan_of(replicated("a b c d", 2)).pieces
    turns = [place.path[0] for place in piece.places if place.kind == "sink"]
    assert {(turn.node, turn.copies) for turn in turns} == {("link", 2)}


def test_every_link_gets_a_copy_if_that_is_asked_for(spark):
    text = flow("{module: link.replicator, params: {mode: each}}", "a b c")
    assert choices(spark, text) == [frozenset("abc")] * len(EVENTS)
    [piece] = plan_of(text).pieces
    turns = [place.path[0] for place in piece.places if place.kind == "sink"]
    assert sorted((turn.node, turn.target, turn.copies) for turn in turns) == [
        ("link", name, 3) for name in "abc"
    ]
