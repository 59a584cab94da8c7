"""A plan in words, without Spark."""

from __future__ import annotations

from penstock.flow.explaining import explain, sentences
from tests.config.files import flow_of

COMPONENTS = """
name: orders
components:
  web: {module: receiver.http, codec: json, params: {bind: 127.0.0.1:7071}}
  by_dest: {module: link.router, params: {routing_key: dest}}
  copy: {module: link.multiplexer}
  retry: {module: link.buffer, params: {max_retry: 3}}
  unique: {module: link.dedupe}
  lines: {module: sink.dumper, params: {out: /tmp/lines}}
  remote: {module: sink.udp, params: {address: 127.0.0.1:9}}
"""
CUT = (
    COMPONENTS
    + """
pipeline:
  web: {connect: by_dest}
  by_dest: {routes: {all: copy, one: retry}}
  copy: {links: [retry, unique]}
  retry: {connect: remote}
  unique: {connect: lines}
"""
)


def words(text: str) -> list[list[str]]:
    return [
        [f"{word} {said}".strip() for word, said in sentences(query)]
        for query in explain(flow_of(text)).queries
    ]


def test_a_query_is_told_in_the_order_of_the_data() -> None:
    [before, behind] = words(CUT)
    assert before == [
        "reads orders.web (filled by web, receiver.http); payloads: json; to by_dest",
        "then by_dest (link.router): by the meta attribute dest: all to copy, one to retry; "
        "the rest ends as unroutable",
        "then copy (link.multiplexer): a copy each to retry and unique",
        "then retry (link.buffer): retries what failed below it; to remote",
        "cut before unique (link.dedupe), by the topic orders.unique: it remembers, so it begins a "
        "query of its own, and not all that comes to it is a topic already",
        "writes remote (sink.udp): best_effort, limited by remote: a datagram may be lost on its way, "
        "and nobody is told",
        "if it fails, it holds back only its own branch; what it missed waits in "
        "orders.remote.park, and ends as failed after 3 retries (retry)",
        "job each micro-batch is one Spark job and one transaction over its 2 sinks and cuts",
    ]
    assert behind[0] == (
        "reads orders.unique (cut before unique, link.dedupe); payloads: json; to unique"
    )
    assert behind[1].startswith("remembers unique: its state is in Spark's state store")
    assert behind[2].startswith("then unique (link.dedupe): ")
    assert behind[3] == "writes lines (sink.dumper): exactly_once"


def test_a_flow_that_commits_as_one_says_so() -> None:
    text = "commit: atomic\n" + COMPONENTS.replace("  unique: {module: link.dedupe}\n", "")
    text = text.replace("  by_dest: {module: link.router, params: {routing_key: dest}}\n", "")
    text = text.replace("  retry: {module: link.buffer, params: {max_retry: 3}}\n", "")
    [query] = words(text + "pipeline: {web: {connect: copy}, copy: {links: [lines, remote]}}\n")
    assert (
        "if it fails, it rolls the batch back at every sink; it is tried again until all agree"
        in (query)
    )
    assert query[-1].endswith("over its 2 sinks; all of them commit, or none")


def test_a_receiver_with_several_ways_out_copies() -> None:
    text = (
        "components: {web: {module: receiver.http, params: {bind: 127.0.0.1:7071}}, "
        "a: {module: sink.dumper}, b: {module: sink.dumper}}\n"
        "pipeline: {web: {links: [a, b]}}\n"
    )
    [query] = words(text)
    assert query[0].endswith("payloads: binary; a copy each to a and b")


def test_what_this_version_cannot_run_is_named() -> None:
    text = (
        "components: {web: {module: receiver.http, params: {bind: 127.0.0.1:7071}}, "
        "a: {module: sink.ws, params: {url: 'ws://127.0.0.1/'}}}\n"
        "pipeline: {web: {connect: a}}\n"
    )
    assert explain(flow_of(text)).missing == ("sink.ws (a)",)
