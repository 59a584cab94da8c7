"""What is not a flow file at all: one clear error at its place, at a bounded cost."""

from __future__ import annotations

import pytest

from penstock.config import inspect
from penstock.flow.components import registry
from penstock.limits import MAX_FLOW_DEPTH, MAX_FLOW_FILE_BYTES, MAX_FLOW_NODES
from tests.config.files import TINY, look_at, only_problem

BAD = {
    "nothing": ("«", "the file is empty"),
    "only a comment": ("«# later\n", "the file is empty"),
    "null": ("«~\n", "the file is empty"),
    "a list": ("«- a\n- b\n", "expected a mapping with `components` and `pipeline`, found a list"),
    "text": ("«hello\n", "expected a mapping with `components` and `pipeline`, found `hello`"),
    "an open bracket": ("components: {a: [\n«", "not YAML"),
    "a stray colon": ("a: b«: c\n", "not YAML: mapping values are not allowed"),
    "a tab": ("components:\n«\tweb: {}\n", "not YAML"),
    "an unknown anchor": ("name: «*who\n", "there is no anchor `&who` before this"),
    "an alias inside its anchor": ("x-a: &a [1, «*a]\n" + TINY, "inside its own anchor"),
    "a tag": ("name: «!!python/object:os.system x\n" + TINY, "tags have no meaning here"),
    "a local tag": ("name: «!secret x\n" + TINY, "tags have no meaning here"),
    "a second document": (TINY + "«---\na: b\n", "a second document begins here"),
    "a list as a key": ("? «[a, b]\n: 1\n", "a key is text, not a list"),
    "a merge of text": ("x-a: {«<<: text}\n" + TINY, "`<<` takes mappings"),
    "no components": ("«pipeline: {}\n", "there are no `components`"),
    "empty components": ("components: «{}\n", "there are no `components`"),
    "components as a list": ("components: «[web]\n", "`components`: expected a mapping"),
    "a component as text": (
        "components: {web: «receiver.http}\n",
        "expected a mapping with `module`, found `receiver.http`",
    ),
    "the pipeline as text": (
        TINY.partition("pipeline")[0].partition(", out")[0] + "}\npipeline: «web\n",
        "`pipeline`: expected a mapping, found `web`",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_flow_file_is_one_error_at_its_place(name):
    text, message = BAD[name]
    problem = only_problem(text)
    assert message in problem.message
    assert problem.severity == "error"


def test_tabs_are_named_as_the_cause():
    assert only_problem("components:\n\tweb: {}\n").hint == "indent with spaces, not tabs"


@pytest.mark.parametrize(
    ("text", "what"),
    [("a: {bind: :7071}\n", "an address"), ("a: {bind: ${PORT}}\n", "a reference")],
)
def test_what_needs_quotes_inside_braces_is_said(text, what):
    assert what in str(only_problem(text).hint)


@pytest.mark.parametrize(
    ("data", "line", "column", "message"),
    [
        (b"name: caf\xe9\n", 1, 10, "not UTF-8"),
        ("a: ü\nb: ".encode() + b"\xff\n", 2, 4, "not UTF-8"),
        (b"\xff\xfen\0a\0", 1, 1, "not UTF-8"),
        (b"a: b\nc: \0\n", 2, 4, "NUL byte"),
        (b"a: b\nc: \x07\n", 2, 4, "not YAML"),
    ],
)
def test_bytes_that_are_no_text_are_placed(data, line, column, message):
    [problem] = look_at(data).problems
    assert (problem.line, problem.column) == (line, column)
    assert message in problem.message


def test_a_byte_order_mark_is_no_mistake():
    assert look_at(b"\xef\xbb\xbf" + TINY.encode()).flow is not None


def test_a_file_over_the_limit_is_refused():
    problem = only_problem("# " + "x" * MAX_FLOW_FILE_BYTES)
    assert f"at most {MAX_FLOW_FILE_BYTES}" in problem.message


def test_nesting_over_the_limit_is_refused():
    assert "nested deeper" in only_problem("x-a: " + "[" * 100_000).message
    at_limit = "x-a: " + "[" * (MAX_FLOW_DEPTH - 1) + "]" * (MAX_FLOW_DEPTH - 1) + "\n"
    assert look_at(at_limit + TINY).flow is not None


def test_nesting_through_aliases_counts():
    levels = ["x-0: &a0 [[[[[[[[]]]]]]]]"]
    levels += [f"x-{n}: &a{n} [[[[[[[[*a{n - 1}]]]]]]]]" for n in range(1, 10)]
    assert "aliases counted" in only_problem("\n".join(levels) + "\n" + TINY).message


def test_a_few_lines_of_aliases_cannot_stand_for_billions():
    bomb = ["x-0: &a0 [" + ", ".join(["lol"] * 10) + "]"]
    bomb += [f"x-{n}: &a{n} [" + ", ".join([f"*a{n - 1}"] * 10) + "]" for n in range(1, 12)]
    problem = only_problem("\n".join(bomb) + "\n" + TINY)
    assert f"more than {MAX_FLOW_NODES} values" in problem.message


def test_merged_mappings_give_way_to_a_mapping_s_own_keys():
    text = (
        "x-base: &base {module: sink.dumper, params: {out: base.out}}\n"
        "components:\n  web: {module: receiver.http, params: {bind: 7071}}\n"
        "  a: {<<: *base}\n  b: {<<: *base, params: {out: own.out}}\n"
        "pipeline: {web: {links: [a, b]}}\n"
    )
    flow = look_at(text).flow
    assert flow is not None
    outs = [flow.components[name].options.shown()["out"] for name in ("a", "b")]
    assert outs == ["base.out", "own.out"]


def test_a_file_that_cannot_be_read_is_a_problem(tmp_path):
    [missing] = inspect(tmp_path / "none.yaml", registry=registry()).problems
    assert "No such file" in missing.message
    [folder] = inspect(tmp_path, registry=registry()).problems
    assert "cannot be read" in folder.message
