"""Every class of mistake is reported at its exact place, with what to do about it."""

from __future__ import annotations

import pytest

from penstock.limits import MAX_COMPONENTS, MAX_PROBLEMS
from tests.config.files import OUT, TINY, WEB, look_at, only_problem

ROUTER = "{module: link.router, params: {routing_key: dest}}"
COPY = "{module: link.multiplexer}"
BUFFER = "{module: link.buffer}"


def flow(components: str, pipeline: str, rest: str = "") -> str:
    return f"components:\n{components}\npipeline:\n{pipeline}\n{rest}"


SPELLING = {
    "a section": ("«compnents: {}\n" + TINY, "no section `compnents`", "`components`"),
    "a setting": ("system: {«maxproc5: 2}\n" + TINY, "no option `maxproc5`", "`maxprocs`"),
    "a nested setting": (
        "system: {admin: {«bnd: 1}}\n" + TINY,
        "no option `bnd`",
        "`bind`",
    ),
    "a module": (
        flow(f"  web: {{module: «receiver.htpp}}\n  out: {OUT}", "  web: {connect: out}"),
        "no module `receiver.htpp`",
        "`receiver.http`",
    ),
    "an option": (
        flow(
            "  web: {module: receiver.http, params: {bind: 7071, «max_conections: 4}}\n"
            f"  out: {OUT}",
            "  web: {connect: out}",
        ),
        "receiver.http has no option `max_conections`",
        "`max_connections`",
    ),
    "a required option": (
        flow(
            f"  web: {WEB}\n  r: {{module: link.router, params: {{«routing_ky: d}}}}\n  a: {OUT}",
            "  web: {connect: r}\n  r: {routes: {x: a}}",
        ),
        "link.router has no option `routing_ky`",
        "`routing_key`",
    ),
    "an option inside a group": (
        flow(
            "  web: {module: receiver.http, params: {bind: 1, tls: {«crt: a, cert: b, key: c}}}\n"
            f"  out: {OUT}",
            "  web: {connect: out}",
        ),
        "has no option `crt`",
        "`cert`",
    ),
    "a component's key": (
        flow(f"  web: {{«modul: receiver.http}}\n  out: {OUT}", "  web: {connect: out}"),
        "has no option `modul`",
        "`module`",
    ),
    "an interceptor": (
        flow(
            "  web:\n    module: receiver.http\n    interceptors: [gzip, «linse]\n"
            f"    params: {{bind: 7071}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "no interceptor `linse`",
        "`lines`",
    ),
    "an interceptor's option": (
        flow(
            "  web:\n    module: receiver.http\n    interceptors: [{separate: {«delimeter: x}}]\n"
            f"    params: {{bind: 7071}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "has no option `delimeter`",
        "`delimiter`",
    ),
    "a codec": (
        flow(
            "  web: {module: receiver.http, codec: «jsno, params: {bind: 7071}}\n"
            + f"  out: {OUT}",
            "  web: {connect: out}",
        ),
        "no codec `jsno`",
        "`json`",
    ),
    "a target": (
        flow(f"  web: {WEB}\n  out: {OUT}", "  web: {connect: [out, «ott]}"),
        "no component `ott`",
        "`out`",
    ),
    "a component in the pipeline": (
        flow(f"  web: {WEB}\n  out: {OUT}", "  web: {connect: out}\n  «wbe: {connect: out}"),
        "no component `wbe`",
        "`web`",
    ),
    "a route's target": (
        flow(
            f"  web: {WEB}\n  r: {ROUTER}\n  box: {OUT}",
            "  web: {connect: r}\n  r: {routes: {a: box, b: «bax}}",
        ),
        "no component `bax`",
        "`box`",
    ),
    "a key in the pipeline": (
        flow(f"  web: {WEB}\n  out: {OUT}", "  web: {connect: out, «link: out}"),
        "has no option `link`",
        "`links`",
    ),
    "a choice": (
        flow(
            f"  web: {{module: receiver.http, params: {{bind: 1, mode: «lnes}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "expected `auto`, `one`, `lines` or `length_prefixed`, found `lnes`; did you mean `lines`?",
        None,
    ),
}


@pytest.mark.parametrize("name", SPELLING)
def test_wrong_spelling_is_placed_and_the_right_one_suggested(name):
    text, message, right = SPELLING[name]
    problem = only_problem(text)
    assert message in problem.message
    assert problem.hint == (f"did you mean {right}?" if right else None)


TYPES = {
    "text for a number": ("system: {maxprocs: «many}", "expected a whole number, found `many`"),
    "a fraction for a whole number": (
        "system: {maxprocs: «1.5}",
        "expected a whole number, found `1.5`",
    ),
    "a list for a number": ("system: {maxprocs: «[1]}", "expected a whole number, found a list"),
    "nothing for a number": ("system: {maxprocs: «~}", "expected a whole number, found nothing"),
    "text for a switch": (
        "system: {admin: {enabled: «maybe}}",
        "expected true or false, found `maybe`",
    ),
    "text for a section": ("system: «fast", "`system`: expected a mapping, found `fast`"),
    "text for a group": ("system: {admin: «off}", "expected a mapping, found `off`"),
    "too little": ("system: {maxprocs: «0}", "expected at least 1, found `0`"),
    "too much": ("system: {maxprocs: «65}", "expected at most 64, found `65`"),
    "no time": ("system: {stop_timeout_s: «soon}", "expected a time in seconds"),
    "no size": ("system: {log: {segment_bytes: «big}}", "expected a size in bytes"),
    "no address": ("system: {admin: {bind: «here}}", "expected an address"),
    "a port past the last": (
        "system: {admin: {bind: «:65536}}".replace(":6", '":6').replace("6}", '6"}'),
        "at most 65535",
    ),
    "a list for the pipeline's name": ("name: «[a]", "expected text, found a list"),
    "a wrong guarantee": ("guarantee: «maybe", "expected best_effort, at_most_once"),
}


@pytest.mark.parametrize("name", TYPES)
def test_wrong_type_says_what_was_expected_and_found(name):
    text, message = TYPES[name]
    assert message in only_problem(text + "\n" + TINY).message


WIRING = {
    "a cycle": (
        flow(
            f"  web: {WEB}\n  a: {BUFFER}\n  b: {COPY}\n  out: {OUT}",
            "  web: {connect: a}\n  a: {connect: b}\n  b: {links: [«a, out]}",
        ),
        "a cycle: a → b → a",
    ),
    "a component that feeds itself": (
        flow(
            f"  web: {WEB}\n  a: {COPY}\n  out: {OUT}",
            "  web: {connect: a}\n  a: {links: [out, «a]}",
        ),
        "a cycle: a → a",
    ),
    "a sink with an output": (
        flow(
            f"  web: {WEB}\n  a: {OUT}\n  b: {OUT}",
            "  web: {links: [a, b]}\n  a: {connect: «b}",
        ),
        "`a` is a sink: nothing comes out of it",
    ),
    "a receiver with an input": (
        flow(
            f"  web: {WEB}\n  copy: {COPY}\n  out: {OUT}",
            "  web: {connect: copy}\n  copy: {links: [out, «web]}",
        ),
        "`web` is a receiver: nothing can go into it",
    ),
    "a router without routes": (
        flow(f"  web: {WEB}\n  r: {ROUTER}", "  web: {connect: r}\n  «r: {}"),
        "the router `r` has no `routes`",
    ),
    "a router with connect": (
        flow(
            f"  web: {WEB}\n  r: {ROUTER}\n  out: {OUT}",
            "  web: {connect: r}\n  r: {connect: «out}",
        ),
        "`r` is a router: it goes to `out` without a route",
    ),
    "routes on something else": (
        flow(f"  web: {WEB}\n  out: {OUT}", "  web: {routes: {a: «out}}"),
        "`web` is no router",
    ),
    "two default routes": (
        flow(
            f"  web: {WEB}\n  r: {ROUTER}\n  out: {OUT}",
            "  web: {connect: r}\n  r: {routes: {default: out}, «default: out}",
        ),
        "two default routes",
    ),
    "a link with two outputs": (
        flow(
            f"  web: {WEB}\n  slow: {BUFFER}\n  a: {OUT}\n  b: {OUT}",
            "  web: {connect: slow}\n  slow: {links: [a, «b]}",
        ),
        "`slow` (link.buffer) goes to one component, not 2",
    ),
    "a link that goes nowhere": (
        flow(f"  web: {WEB}\n  slow: {BUFFER}", "  web: {connect: slow}\n  «slow: {}"),
        "`slow` (link.buffer) goes nowhere",
    ),
    "a link that the pipeline only names": (
        flow(f"  web: {WEB}\n  «slow: {BUFFER}", "  web: {connect: slow}"),
        "`slow` (link.buffer) goes nowhere",
    ),
    "a sink that nothing feeds": (
        flow(f"  web: {WEB}\n  a: {OUT}\n  b: {OUT}", "  web: {connect: a}\n  «b: {}"),
        "nothing goes into `b`",
    ),
    "a join with one input": (
        flow(
            f"  web: {WEB}\n  both: {{module: link.join, params: {{on: a.x = b.x}}}}\n  out: {OUT}",
            "  web: {connect: both}\n  «both: {connect: out}",
        ),
        "`both` needs 2 inputs, not 1",
    ),
    "a component that is not used": (
        flow(f"  web: {WEB}\n  out: {OUT}\n  «spare: {OUT}", "  web: {connect: out}"),
        "`spare` is not in the pipeline",
    ),
    "a receiver that is not used": (
        flow(
            f"  web: {WEB}\n  «tcp: {{module: receiver.tcp, params: {{bind: 7072}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "`tcp` is not in the pipeline",
    ),
    "a target twice": (
        flow(f"  web: {WEB}\n  out: {OUT}", "  web: {links: [out, «out]}"),
        "`web` goes to `out` twice",
    ),
    "a list in connect beside links": (
        flow(f"  web: {WEB}\n  a: {OUT}", "  web: {connect: [a], «links: [a]}"),
        "a list in `connect` means `links`",
    ),
    "more replicas than links": (
        flow(
            f"  web: {WEB}\n  r: {{module: link.replicator, params: {{replicas: «3}}}}\n"
            f"  a: {OUT}\n  b: {OUT}",
            "  web: {connect: r}\n  r: {links: [a, b]}",
        ),
        "`r` makes 3 copies but has 2 links",
    ),
    "two receivers on one port": (
        flow(
            f"  web: {WEB}\n  tcp:\n    module: receiver.tcp\n    params:\n      bind: «:7071\n"
            f"  out: {OUT}",
            "  web: {connect: out}\n  tcp: {connect: out}",
        ),
        "`tcp` listens on tcp :7071, where `web` does already",
    ),
    "a receiver on the admin API's port": (
        flow(
            f"  web: {{module: receiver.http, params: {{bind: «localhost:8080}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "where the admin API does already",
    ),
    "two receivers on one path": (
        flow(
            "  a: {module: receiver.unix, params: {path: /tmp/a}}\n"
            f"  b: {{module: receiver.unix, params: {{path: «/tmp/a}}}}\n  out: {OUT}",
            "  a: {connect: out}\n  b: {connect: out}",
        ),
        "`b` listens on unix /tmp/a, where `a` does already",
    ),
}


@pytest.mark.parametrize("name", WIRING)
def test_wrong_wiring_is_placed(name):
    text, message = WIRING[name]
    assert message in only_problem(text).message


def test_what_lies_behind_an_unfed_component_cannot_be_reached():
    text = flow(
        f"  web: {WEB}\n  a: {BUFFER}\n  b: {OUT}\n  out: {OUT}",
        "  web: {connect: out}\n  a: {connect: b}\n  b: {}",
    )
    found = [(one.line, one.column, one.message) for one in look_at(text).problems]
    assert found == [
        (8, 3, "nothing goes into `a`: no `connect` names it"),
        (9, 3, "`b` cannot be reached from any receiver"),
    ]


OTHERS = {
    "a missing option": (
        flow(f"  «web: {{module: receiver.http}}\n  out: {OUT}", "  web: {connect: out}"),
        "receiver.http needs `bind`",
    ),
    "a missing option of a group": (
        flow(
            f"  web: {{module: receiver.http, params: {{bind: 1, tls: «{{cert: a}}}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "receiver.http needs `tls.key`",
    ),
    "an option in two spellings": (
        flow(
            "  web: {module: receiver.http, params: {bind: 7071, «bind_addr: 7072}}\n"
            f"  out: {OUT}",
            "  web: {connect: out}",
        ),
        "`bind_addr` says the same as `bind`",
    ),
    "a key twice": ("name: a\n«name: b\n" + TINY, "`name` is given twice; the first is on line 1"),
    "no module": (
        flow(f"  «web: {{params: {{}}}}\n  out: {OUT}", "  web: {connect: out}"),
        "needs `module` or `plugin`",
    ),
    "a plugin without its constructor": (
        flow(f"  web: {{«plugin: mine}}\n  out: {OUT}", "  web: {connect: out}"),
        "the plugin `mine` needs `constructor`",
    ),
    "a plugin that is a module too": (
        flow(
            f"  web: {{«plugin: mine, constructor: f, module: sink.tcp}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "either `plugin` or `module`",
    ),
    "a constructor on a module": (
        flow(
            f"  web: {WEB}\n  out: {{module: sink.dumper, «constructor: f}}",
            "  web: {connect: out}",
        ),
        "takes no `constructor`",
    ),
    "interceptors on a link": (
        flow(
            f"  web: {WEB}\n  b: {{module: link.buffer, «interceptors: [lines]}}\n  out: {OUT}",
            "  web: {connect: b}\n  b: {connect: out}",
        ),
        "link.buffer takes no `interceptors`",
    ),
    "a topic behind a sink": (
        flow(f"  web: {WEB}\n  out: {{module: sink.dumper, «topic: x}}", "  web: {connect: out}"),
        "sink.dumper has no topic behind it",
    ),
    "an interceptor that is a list": (
        flow(
            "  web: {module: receiver.http, interceptors: [«[lines]], params: {bind: 7071}}\n"
            f"  out: {OUT}",
            "  web: {connect: out}",
        ),
        "expected the name of one interceptor",
    ),
    "a bad name for the flow": ("name: «Orders!\n" + TINY, "flow name 'Orders!'"),
    "a bad name for a topic": (
        flow(
            f"  web: {{module: receiver.http, topic: «Big, params: {{bind: 1}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "topic name 'Big'",
    ),
    "a name that makes no topic": (
        flow(f"  «Web: {WEB}\n  out: {OUT}", "  Web: {connect: out}"),
        "topic name 'orders.Web'",
    ),
    "a bad name for a component": (
        flow(f"  web: {WEB}\n  «o ut: {OUT}", "  web: {connect: o ut}"),
        "a name has 1 to 100 letters",
    ),
    "two topics for one receiver": (
        flow(
            f"  «web: {{module: receiver.http, topic: a, params: {{bind: 1, topic: b}}}}\n  out: {OUT}",
            "  web: {connect: out}",
        ),
        "two topics, a and b",
    ),
    "dead letters that come back in": (
        f"dead_letter: «orders.web\n{TINY}",
        "dead letters would go to `orders.web`, the topic of `web`",
    ),
    "both spellings of components": (TINY + "«actors: {}\n", "`actors` is another name"),
    "a guarantee that cannot be met": (
        "guarantee: «exactly_once\n" + TINY,
        "web → out is at_least_once, not exactly_once: `out` limits it",
    ),
    "a receiver that has no ids for a topic that goes by them": (
        flow(
            f"  web: {WEB}\n  «u: {{module: receiver.udp, topic: ids, params: {{bind: 7073}}}}\n"
            f"  out: {OUT}",
            "  web: {connect: out}\n  u: {connect: out}",
            "topics: {ids: {ids: producer}, orders.web: {ids: producer}}",
        ),
        "`u`: the topic `ids` has `ids: producer`, and receiver.udp cannot give",
    ),
    "a sink that has no ids for a topic that goes by them": (
        flow(
            f"  web: {WEB}\n  «out: {{module: sink.topic, params: {{topic: ids}}}}",
            "  web: {connect: out}",
            "topics: {ids: {ids: producer}}",
        ),
        "sink.topic cannot give a message the id",
    ),
    "dead letters that have no ids": (
        "dead_letter: «ids\n" + TINY + "topics: {ids: {ids: producer}}\n",
        "dead letters cannot go to `ids`",
    ),
    "producer ids on several partitions": (
        TINY + "topics:\n  «t: {ids: producer, partitions: 2}\n",
        "`ids: producer` needs `partitions: 1`",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_mistakes_are_placed(name):
    text, message = OTHERS[name]
    assert message in only_problem(text).message


def test_all_mistakes_are_reported_at_once_by_place():
    text = (
        "systm: {}\nsystem: {maxprocs: x}\ncomponents:\n  web: {module: receiver.htp}\n"
        "  out: {module: sink.dumper, params: {ot: x}}\npipeline:\n  web: {connect: aut}\n"
        "  out: {conect: web}\n"
    )
    places = [(one.line, one.column) for one in look_at(text).problems]
    assert places == [(1, 1), (2, 20), (4, 17), (5, 39), (7, 18), (8, 9)]


def test_problems_past_the_limit_are_counted():
    many = "".join(f"zz{number}: 1\n" for number in range(MAX_PROBLEMS + 50))
    problems = look_at(many + TINY).problems
    assert len(problems) == MAX_PROBLEMS + 1
    assert problems[-1].message == "and 50 more problems, not shown"


def test_too_many_components_are_refused():
    many = "".join(f"  c{number}: {OUT}\n" for number in range(MAX_COMPONENTS + 1))
    assert f"at most {MAX_COMPONENTS}" in only_problem("components:\n" + many).message


def test_a_misspelt_interceptor_is_one_mistake():
    """It may be the one that cuts the stream."""
    text = flow(
        "  tcp:\n    module: receiver.tcp\n    interceptors: [«linse]\n    params: {bind: 7072}\n"
        f"  out: {OUT}",
        "  tcp: {connect: out}",
    )
    assert "no interceptor `linse`" in only_problem(text).message


@pytest.mark.parametrize(
    ("module", "bind", "expected"),
    [
        ("receiver.udp", "http://:7071", "udp"),
        ("receiver.udp", "tcp://:7071", "udp"),
        ("receiver.tcp", "udp://:7071", "tcp"),
        ("receiver.tcp", "https://:7071", "tcp"),
        ("receiver.http", "udp://:7071", "tcp or http or https"),
        ("receiver.connector", "http://:7071", "tcp"),
    ],
)
def test_an_address_has_the_scheme_of_its_component(module, bind, expected):
    text = flow(
        f"  in: {{module: {module}, params: {{bind: «'{bind}'}}}}\n  out: {OUT}",
        "  in: {connect: out}",
    )
    assert f"does not fit here; expected {expected}" in only_problem(text).message
    right = text.replace("«", "").replace(bind, f"{expected.split()[0]}://:7071")
    assert look_at(right).flow is not None


def test_a_stream_without_an_interceptor_that_cuts_it_is_a_warning():
    text = flow(
        "  tcp:\n    module: receiver.tcp\n    «interceptors: [gzip]\n    params: {bind: 7072}\n"
        f"  out: {OUT}",
        "  tcp: {connect: out}",
    )
    problem = only_problem(text)
    assert problem.severity == "warning"
    assert "where a message ends" in problem.message
    assert look_at(text.replace("«", "")).flow is not None
