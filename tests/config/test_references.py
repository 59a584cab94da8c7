"""`${ENV}`, `${ENV:default}`, `${file:/path}`: what they stand for, and that secrets stay secret."""

from __future__ import annotations

import json
import os

import pytest

from penstock.config import Flow, FlowFileError, load
from penstock.config.schema import flow_schema
from penstock.flow.components import registry
from penstock.flow.drawing import Format, draw
from penstock.flow.graph import Graph
from penstock.limits import MAX_SECRET_BYTES
from tests.config.files import OUT, TINY, flow_of, look_at, only_problem

SECRET = "correct-horse-battery"


def web(params: str) -> str:
    return (
        f"components:\n  web: {{module: receiver.http, params: {params}}}\n  out: {OUT}\n"
        "pipeline: {web: {connect: out}}\n"
    )


def options_of(flow: Flow, name: str = "web"):
    return flow.components[name].options


def test_variables_take_the_type_of_their_place():
    text = web('{bind: "${HOST}:${PORT}", max_connections: "${MAX}", sync: "${SYNC:no}"}')
    options = options_of(flow_of(text, env={"HOST": "[::1]", "PORT": "80", "MAX": "7"}))
    assert str(options.bind) == "[::1]:80"
    assert options.max_connections == 7
    assert options.sync is False


def test_a_default_stands_in_for_a_variable_that_is_not_set():
    text = web('{bind: "${WHERE:127.0.0.1:7071}", path: "${P:}/x"}')
    options = options_of(flow_of(text))
    assert (str(options.bind), options.path) == ("127.0.0.1:7071", "/x")


def test_two_dollars_are_one_and_no_reference():
    text = "components:\n  web: {module: receiver.http, params: {bind: 7071}}\n"
    text += '  out: {module: sink.dumper, params: {out: "a$${B}$c$"}}\npipeline: {web: {connect: out}}\n'
    assert options_of(flow_of(text), "out").out == "a${B}$c$"


def test_keys_are_not_references():
    text = "x-${NOPE}: 1\n" + TINY
    assert look_at(text).flow is not None


BROKEN = {
    "not set": ('{bind: «"${NOPE}"}', "the environment variable `NOPE` is not set"),
    "not closed": ('{bind: «"${NOPE"}', "`${` without its `}`"),
    "no name": ('{bind: «"${}"}', "`${}` is not a reference"),
    "no such name": ('{bind: «"${A-B}"}', "`${A-B}` is not a reference"),
    "in a list": ('{bind: 1, meta_headers: [a, «"${NOPE}"]}', "`NOPE` is not set"),
    "no file": ('{bind: 1, tokens: [«"${file:/no/such/file}"]}', "cannot be read: No such file"),
    "no path": ('{bind: 1, tokens: [«"${file:}"]}', "names no file"),
    "a folder": ('{bind: 1, tokens: [«"${file:/}"]}', "cannot be read: Is a directory"),
    "an endless file": ('{bind: 1, tokens: [«"${file:/dev/zero}"]}', "is not a regular file"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_reference_that_cannot_be_followed_is_the_only_problem(name):
    params, message = BROKEN[name]
    assert message in only_problem(web(params)).message


def test_the_nearest_variable_is_suggested():
    problem = only_problem(web('{bind: "${PROT}"}'), env={"PORT": "1", "HOME": "/"})
    assert problem.hint == "did you mean `PORT`?"


def test_a_wrong_value_from_a_variable_is_shown_where_it_is_used():
    problem = only_problem(web('{bind: 1, max_connections: «"${MAX}"}'), env={"MAX": "lots"})
    assert "expected a whole number, found `lots`" in problem.message


def test_a_fifo_does_not_hang_the_loader(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    problem = only_problem(web('{bind: 1, tokens: ["${file:pipe}"]}'), path=tmp_path / "f.yaml")
    assert "is not a regular file" in problem.message


def test_a_secret_is_bounded_and_text(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (MAX_SECRET_BYTES + 1))
    (tmp_path / "raw").write_bytes(b"\xff")
    big = only_problem(web('{bind: 1, tokens: ["${file:big}"]}'), path=tmp_path / "f.yaml")
    assert f"more than {MAX_SECRET_BYTES} bytes" in big.message
    raw = only_problem(web('{bind: 1, tokens: ["${file:raw}"]}'), path=tmp_path / "f.yaml")
    assert "is not UTF-8" in raw.message


def test_variables_cannot_make_the_file_grow_without_bound():
    many = ", ".join(['"${BIG}"'] * 40)
    problems = look_at(f"x-a: [{many}]\n" + TINY, env={"BIG": "x" * 100_000}).problems
    assert any("values come to more than" in one.message for one in problems)


@pytest.fixture
def secret_file(tmp_path):
    (tmp_path / "secret").write_text(SECRET + "\n")
    return tmp_path / "orders.yaml"


def test_secrets_reach_the_options_without_their_line_end(secret_file):
    text = web('{bind: 1, tokens: ["${file:secret}"], tls: {cert: a, key: "${file:./secret}"}}')
    options = options_of(flow_of(text, path=secret_file))
    assert [token.get_secret_value() for token in options.tokens] == [SECRET]
    assert options.tls.key.get_secret_value() == SECRET
    assert options.wire()["tokens"] == [SECRET]


PLACES = {
    "a secret option": web('{bind: 1, tokens: ["x${file:secret}"]}'),
    "a plain option": web('{bind: 1, path: "/${file:secret}"}'),
    "a plain option in a group": web('{bind: 1, tls: {cert: "${file:secret}", key: x}}'),
    "a list": web('{bind: 1, meta_headers: ["${file:secret}"]}'),
    "a setting": 'system: {data_dir: "${file:secret}"}\n' + TINY,
    "a plugin": (
        "components:\n  web: {module: receiver.http, params: {bind: 1}}\n"
        '  out: {plugin: p, constructor: f, params: {a: {b: "${file:secret}"}}}\n'
        "pipeline: {web: {connect: out}}\n"
    ),
    "an interceptor": (
        "components:\n  web:\n    module: receiver.http\n    params: {bind: 1}\n"
        '    interceptors: [{ingest_ns: {key: "${file:secret}"}}]\n'
        "pipeline: {web: {}}\n"
    ),
    "a header": (
        "components:\n  web: {module: receiver.http, params: {bind: 1}}\n"
        "  out: {module: sink.http, params: {url: http://a/, headers: {a: '${file:secret}'}}}\n"
        "pipeline: {web: {connect: out}}\n"
    ),
}


@pytest.mark.parametrize("place", PLACES)
def test_secrets_are_in_nothing_that_is_shown(secret_file, place):
    flow = flow_of(PLACES[place], path=secret_file)
    shown = [repr(flow), str(flow.settings), str(flow.warnings)]
    shown += [repr(one.options.shown()) for one in flow.components.values()]
    shown += [draw(Graph(flow), form) for form in Format]
    shown += [json.dumps(flow_schema(registry()))]
    assert not [text for text in shown if SECRET in text]


WRONG_PLACES = {
    "a number": web('{bind: 1, max_connections: "${file:secret}"}'),
    "an address": web('{bind: "${file:secret}"}'),
    "a choice": web('{bind: 1, mode: "${file:secret}"}'),
    "a pattern": web('{bind: 1, path: "${file:secret}"}'),
    "a header's name": web('{bind: 1, meta_headers: "*${file:secret}"}'),
    "a size": web('{bind: 1, max_body_bytes: "${file:secret}"}'),
    "a name": 'name: "${file:secret}"\n' + TINY,
    "a topic": 'dead_letter: "${file:secret}!"\n' + TINY,
    "a module": "components: {a: {module: '${file:secret}'}}\npipeline: {a: {}}\n",
    "a target": TINY.replace("connect: out", "connect: '${file:secret}'"),
    "an interceptor": (
        "components: {a: {module: receiver.http, params: {bind: 1},"
        " interceptors: ['${file:secret}']}}\npipeline: {a: {}}\n"
    ),
    "an interceptor that is a map": (
        "components: {a: {module: receiver.http, params: {bind: 1},"
        " interceptors: [{lines: '${file:secret}'}]}}\npipeline: {a: {}}\n"
    ),
    "a setting": 'system: {maxprocs: "${file:secret}"}\n' + TINY,
    "a group": 'system: {admin: "${file:secret}"}\n' + TINY,
    "a workflow": TINY
    + "workflows: {w: {trigger: {topic: t}, stages: {a: {after: ['${file:secret}']}}}}\n",
}


@pytest.mark.parametrize("place", WRONG_PLACES)
def test_secrets_are_in_no_error(secret_file, place):
    loaded = look_at(WRONG_PLACES[place], path=secret_file)
    assert loaded.flow is None
    assert loaded.problems
    assert SECRET not in "\n".join(map(str, loaded.problems))


def test_an_error_holds_no_secret_of_the_environment_s_making(secret_file):
    secret_file.write_text(web('{bind: 1, max_connections: "${file:secret}"}'))
    with pytest.raises(FlowFileError) as caught:
        load(secret_file, registry=registry())
    assert SECRET not in f"{caught.value} {caught.value!r} {caught.value.source}"
