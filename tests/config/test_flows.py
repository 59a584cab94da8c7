"""What a file means: wiring, topics, defaults, files of the original relay, and our examples."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config import Edge, FlowFileError, load
from penstock.config.guarantees import path_guarantees
from penstock.config.registry import Kind
from penstock.flow.components import registry
from penstock.guarantee import Guarantee
from tests.config.files import OUT, TINY, WEB, flow_of, look_at, only_problem

EXAMPLES = sorted(
    path
    for path in (Path(__file__).parents[2] / "examples").glob("*.yaml")
    if not path.name.endswith(".test.yaml")
)


def edges(components: str, pipeline: str) -> list[Edge]:
    return list(flow_of(f"components: {{{components}}}\npipeline: {{{pipeline}}}\n").edges)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load_without_a_problem(path):
    assert load(path, registry=registry(), environment={}).warnings == ()


def test_there_are_examples():
    assert {path.stem for path in EXAMPLES} >= {"quickstart", "tcp-lines", "udp", "unix", "relay"}


def test_connect_wires_one_and_a_list_means_links():
    parts = f"web: {WEB}, a: {OUT}, b: {OUT}"
    assert edges(f"web: {WEB}, a: {OUT}", "web: {connect: a}") == [Edge("web", "a")]
    assert edges(parts, "web: {connect: [a, b]}") == [Edge("web", "a"), Edge("web", "b")]
    assert edges(parts, "web: {links: [a, b]}") == [Edge("web", "a"), Edge("web", "b")]


def test_links_beside_connect_are_incoming():
    tcp = "{module: receiver.tcp, params: {bind: 7072}}"
    found = edges(
        f"web: {WEB}, tcp: {tcp}, both: {{module: link.mux}}, out: {OUT}",
        "both: {links: [web, tcp], connect: out}",
    )
    assert set(found) == {Edge("web", "both"), Edge("tcp", "both"), Edge("both", "out")}


def test_an_edge_may_be_named_from_both_ends():
    found = edges(
        f"web: {WEB}, both: {{module: link.mux}}, out: {OUT}",
        "web: {connect: both}, both: {links: [web], connect: out}",
    )
    assert set(found) == {Edge("web", "both"), Edge("both", "out")}


@pytest.mark.parametrize(
    "default", ["routes: {a: x, no: y, default: z}", "routes: {a: x, no: y}, default: z"]
)
def test_routes_pick_by_key_and_have_a_default(default):
    found = edges(
        f"web: {WEB}, r: {{module: link.router, params: {{routing_key: d}}}}, "
        f"x: {OUT}, 'y': {OUT}, z: {OUT}",
        f"web: {{connect: r}}, r: {{{default.replace(' y', ' y')}}}",
    )
    assert [(edge.route, edge.target) for edge in found[1:]] == [
        ("a", "x"),
        ("no", "y"),
        ("default", "z"),
    ]


def test_a_receiver_may_only_fill_its_topic():
    flow = flow_of(f"components: {{web: {WEB}}}\npipeline: {{web: {{}}}}\n")
    assert flow.edges == ()
    assert flow_of(f"components: {{web: {WEB}}}\n").components["web"].topic == "orders.web"


def test_an_answer_to_a_caller_is_no_cycle():
    text = (
        "components:\n  web: {module: peer.http, params: {bind: 7071}}\n  slow: {module: link.buffer}\n"
        "pipeline: {web: {connect: slow}, slow: {connect: web}}\n"
    )
    assert set(flow_of(text).edges) == {Edge("web", "slow"), Edge("slow", "web")}


def test_names_and_topics_have_their_defaults():
    flow = flow_of(TINY, path="/x/orders.yaml")
    assert (flow.name, flow.components["web"].topic, flow.dead_letter) == (
        "orders",
        "orders.web",
        "orders.dead",
    )
    assert flow.components["out"].topic is None
    assert (flow.commit, flow.guarantee) == ("branch", None)


def test_names_and_topics_can_be_given():
    text = (
        "name: shop\ndead_letter: shop/rejects\ncommit: atomic\ncomponents:\n"
        "  a: {module: receiver.http, topic: shop/in, params: {bind: 1}}\n"
        "  b: {module: receiver.http, params: {bind: 2, topic: other}}\n"
        "  c: {module: receiver.topic, params: {topic: else}}\n"
        f"  out: {OUT}\npipeline: {{a: {{connect: out}}, b: {{connect: out}}, c: {{connect: out}}}}\n"
    )
    flow = flow_of(text)
    assert (flow.name, flow.dead_letter, flow.commit) == ("shop", "shop/rejects", "atomic")
    assert [flow.components[name].topic for name in "abc"] == ["shop/in", "other", "else"]


@pytest.mark.parametrize(
    ("stem", "name"), [("orders", "orders"), ("My Orders", "my-orders"), ("_x.prod", "x.prod")]
)
def test_a_file_s_stem_is_made_fit_to_name_a_flow(stem, name):
    assert flow_of(TINY, path=f"/x/{stem}.yaml").name == name


def test_a_file_name_without_a_letter_needs_a_name():
    assert "makes no name" in look_at(TINY, path="/x/___.yaml").problems[0].message


def test_modules_are_named_in_their_preferred_spelling():
    text = (
        "components:\n  web: {module: core.receiver.http, params: {bind: 7071}}\n"
        "  a: {module: links.demux}\n  b: {module: core.mux}\n  c: {module: link.dmx}\n"
        f"  out: {OUT}\npipeline: {{web: {{connect: a}}, a: {{links: [b]}}, b: {{connect: c}}, c: {{connect: out}}}}\n"
    )
    found = {name: one.module for name, one in flow_of(text).components.items()}
    assert found == {
        "web": "receiver.http",
        "a": "link.multiplexer",
        "b": "link.demultiplexer",
        "c": "link.demultiplexer",
        "out": "sink.dumper",
    }


def test_interceptors_are_names_or_maps_and_streams_have_lines_by_default():
    text = (
        "components:\n"
        "  a: {module: receiver.tcp, params: {bind: 1}}\n"
        "  b: {module: receiver.tcp, interceptors: [gzip, {separate: {separator: ';', max_length: 1KiB}}],"
        " params: {bind: 2}}\n"
        "  c: {module: receiver.http, codec: {csv: {delimiter: ;}}, params: {bind: 3}}\n"
        "  d: {module: receiver.unix, params: {path: /tmp/d, mode: datagram}}\n"
        "  e: {module: receiver.tcp, interceptors: lines, params: {bind: 4}}\n"
    )
    flow = flow_of(text)
    chains = {
        name: [stage.name for stage in one.interceptors] for name, one in flow.components.items()
    }
    assert chains == {"a": ["lines"], "b": ["gzip", "separate"], "c": [], "d": [], "e": ["lines"]}
    separate = flow.components["b"].interceptors[1].options
    assert separate.shown() == {"delimiter": ";", "max_length": 1024}
    codec = flow.components["c"].codec
    assert codec is not None
    assert (codec.name, codec.options.shown()["delimiter"]) == ("csv", ";")


def test_a_plugin_keeps_its_params_with_yaml_s_types():
    text = (
        "components:\n  web: {module: receiver.http, params: {bind: 1}}\n"
        "  own:\n    plugin: my_plugin\n    constructor: NewThing\n"
        "    params: {a: 1, b: 2.5, c: true, d: ~, e: '1', f: [x, {g: no}], h: ${N}}\n"
        "pipeline: {web: {connect: own}}\n"
    ).replace("${N}", '"${N}"')
    own = flow_of(text, env={"N": "7"}).components["own"]
    assert (own.kind, own.module, own.constructor) == (None, "plugin.my_plugin", "NewThing")
    assert own.options.shown()["params"] == {
        "a": 1,
        "b": 2.5,
        "c": True,
        "d": None,
        "e": "1",
        "f": ["x", {"g": "no"}],
        "h": 7,
    }


def test_topics_take_what_they_lack_from_the_system():
    text = (
        "system: {maxprocs: 4, log: {compression: lz4, retention: {time: 7d}}}\n"
        "topics:\n  orders.web: {retention: kept, segment_bytes: 64MiB}\n  ids: {ids: producer}\n"
        "  more: {partitions: 9}\n" + TINY
    )
    flow = flow_of(text)
    web = flow.topic_options("orders.web")
    assert (web.partitions, web.compression, web.segment_bytes) == (4, "lz4", 64 * 2**20)
    assert web.retention is not None
    assert web.retention.age_s is None
    assert flow.topic_options("ids").partitions == 1
    assert flow.topic_options("more").partitions == 9
    other = flow.topic_options("other").retention
    assert other is not None
    assert other.age_s == 7 * 86_400


def test_a_receiver_may_ask_for_partitions():
    flow = flow_of("components: {web: {module: receiver.http, params: {bind: 1, partitions: 3}}}\n")
    assert flow.topic_options("orders.web").partitions == 3


def test_what_cannot_run_yet_is_listed():
    text = (
        "components:\n  web: {module: receiver.http, interceptors: [zstd], codec: yaml,"
        " params: {bind: 1}}\n"
        "  out: {module: sink.ws, params: {url: 'ws://h'}}\npipeline: {web: {connect: out}}\n"
    )
    assert [(gap.component, gap.what) for gap in flow_of(text).missing()] == [
        ("web", "interceptor zstd"),
        ("web", "codec yaml"),
        ("out", "sink.ws"),
    ]


def test_what_can_run_now_is_declared_so():
    known = registry()
    running = {one.module for one in known if one.available}
    assert running >= {"receiver.http", "receiver.tcp", "receiver.udp", "receiver.unix"}
    names = {one.name for one in known.of_kind(Kind.INTERCEPTOR) if one.available}
    assert names >= {"lines", "separate", "length_prefixed", "gzip", "decompress", "base64"}


def test_options_survive_the_wire():
    text = (
        "components:\n  web:\n    module: receiver.http\n    params:\n      bind: '[::1]:7071'\n"
        "      tokens: [a, b]\n      meta_headers: X-Meta-*\n      idle_timeout_s: 2m\n"
        "      tls: {cert: c, key: k, min_version: 1.3}\n"
    )
    options = flow_of(text).components["web"].options
    again = type(options).model_validate(options.wire())
    assert again == options
    assert again.wire() == options.wire()


def test_guarantees_name_the_weakest_part_of_each_path():
    text = (
        f"components:\n  web: {WEB}\n  dgram: {{module: receiver.udp, params: {{bind: 1}}}}\n"
        "  copy: {module: link.multiplexer}\n  out: {module: sink.dumper, params: {out: f}}\n"
        "  far: {module: sink.tcp, params: {address: ':1', reply: status}}\n"
        "pipeline: {web: {connect: copy}, dgram: {connect: copy}, copy: {links: [out, far]}}\n"
    )
    flow = flow_of(text)
    found = {
        (one.source, one.sink): (one.guarantee, one.limited_by)
        for one in path_guarantees(flow.components, flow.edges)
    }
    assert found == {
        ("web", "out"): (Guarantee.EXACTLY_ONCE, None),
        ("web", "far"): (Guarantee.AT_LEAST_ONCE, "far"),
        ("dgram", "out"): (Guarantee.AT_MOST_ONCE, "dgram"),
        ("dgram", "far"): (Guarantee.AT_MOST_ONCE, "dgram"),
    }


def test_a_plugin_s_promise_is_unknown_wherever_it_stands():
    own = "{plugin: mine, constructor: New}"
    text = (
        f"components: {{web: {WEB}, own: {own}, out: {OUT}, last: {own}, first: {own}}}\n"
        "pipeline: {web: {links: [own, last]}, own: {connect: out}, first: {connect: out}}\n"
    )
    flow = flow_of(text)
    found = {
        (one.source, one.sink): (str(one.guarantee), one.limited_by)
        for one in path_guarantees(flow.components, flow.edges)
    }
    assert found == {
        ("web", "out"): ("unknown", "own"),
        ("web", "last"): ("unknown", "last"),
        ("first", "out"): ("unknown", "first"),
    }


@pytest.mark.parametrize("declared", ["best_effort", "exactly_once"])
def test_no_guarantee_can_be_declared_over_a_plugin(declared):
    text = (
        f"guarantee: «{declared}\ncomponents: {{web: {WEB}, own: {{plugin: mine, constructor: New}}}}\n"
        "pipeline: {web: {connect: own}}\n"
    )
    problem = only_problem(text)
    assert f"web → own is unknown, not {declared}: `own` limits it" in problem.message


def test_load_raises_every_problem(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("nme: x\n" + TINY.replace("connect: out", "connect: oot"))
    with pytest.raises(FlowFileError) as caught:
        load(path, registry=registry(), environment={})
    assert [one.line for one in caught.value.problems] == [1, 2, 3]
    assert f"{path}:1:1: error: a flow file has no section `nme`" in str(caught.value)


RELAY = {
    "classic": """
system:
  max_proc: 4
  admin:
    enabled: true
    bind_addr: :4101

components:
  in_udp:
    module: receiver.udp
    params:
      backend: std
      bind_addr: :3101
  in_unix:
    module: receiver.unix
    params:
      bind_addr: /tmp/relay.sock
      backend: evio
  collect:
    module: link.dmx
  limit:
    module: link.throttler
    params:
      rps: 10000
  meta:
    module: link.meta_parser
  copies:
    module: link.mpx
  turns:
    module: link.fanout
  first:
    module: sink.tcp
    params:
      bind_addr: :7222
  second:
    module: sink.udp
    params:
      bind_addr: localhost:7223
  console:
    module: sink.dumper
    params:
      out: STDOUT

pipeline:
  in_udp:
    connect: collect
  in_unix:
    connect: collect
  collect:
    connect: limit
  limit:
    connect: meta
  meta:
    connect: copies
  copies:
    links:
      - turns
      - console
  turns:
    links:
      - first
      - second
""",
    "actors": """
version: v1alpha1
system:
  admin:
    enabled: true
    bind: :8080
actors:
  listener:
    module: core.receiver.http
    params:
      bind: :8081
  hold:
    module: core.buffer
  everyone:
    module: core.replicator
    params:
      mode: each
  tcp_out:
    module: core.sink
    params:
      bind: tcp://:7071
  console:
    module: core.sink
    params:
      bind: file://STDOUT
  file_out:
    module: core.sink.dumper
    params:
      out: relay.out
pipeline:
  listener:
    connect: hold
  hold:
    connect: everyone
  everyone:
    connect:
      - tcp_out
      - console
      - file_out
""",
    "several sockets": """
components:
  many:
    module: receiver.evio
    params:
      listeners:
        - tcp://localhost:3001
        - udp://localhost:3101
        - unix:///tmp/many.sock
  console:
    module: sink.dumper
    params:
      out: STDERR
pipeline:
  many:
    connect: console
""",
}


@pytest.mark.parametrize("name", RELAY)
def test_files_of_the_original_relay_load_unchanged(name):
    assert flow_of(RELAY[name]).warnings == ()


def test_addresses_of_the_original_relay_keep_their_meaning():
    flow = flow_of(RELAY["classic"])
    assert str(flow.components["in_udp"].options.listens()[0].place) == ":3101"
    assert str(flow.components["first"].options.shown()["address"]) == "127.0.0.1:7222"
    assert flow.system.maxprocs == 4
    newer = flow_of(RELAY["actors"])
    assert newer.components["tcp_out"].module == "sink.tcp"
    assert newer.components["console"].options.shown() == {"out": "STDOUT"}
