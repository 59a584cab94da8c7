"""Files of cases: what they mean, and every mistake in them with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.config.problems import FlowFileError, Problem
from penstock.errors import PenstockError
from penstock.testing import Input, Match, faults
from penstock.testing.reading import Suite, read_suite, suites_of
from tests.config.files import place_of

FLOW = """
name: orders
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  big: {module: link.filter, params: {condition: "length(payload) > 3"}}
  copy: {module: link.multiplexer}
  box: {module: sink.dumper, params: {out: box.out}}
  kept: {module: sink.topic, params: {topic: orders.kept}}
pipeline:
  web: {connect: big}
  big: {connect: copy}
  copy: {links: [box, kept]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "orders.yaml").write_text(FLOW)
    return tmp_path


def read(folder: Path, text: str) -> Suite:
    path = folder / "orders.test.yaml"
    path.write_text(text)
    return read_suite(path)


def problems(folder: Path, text: str) -> list[Problem]:
    with pytest.raises(FlowFileError) as caught:
        read(folder, text)
    return caught.value.problems


def only_problem(folder: Path, text: str) -> str:
    """The one mistake, which is where the text has the mark `«`."""
    plain, line, column = place_of(text)
    [found] = problems(folder, plain)
    assert (found.line, found.column) == (line, column), str(found)
    return f"{found.message} ({found.hint})" if found.hint else found.message


def test_short_forms_stand_for_long_ones(folder: Path) -> None:
    short, long = read(
        folder,
        """
cases:
  - name: short
    inputs: {web: [one]}
    expect: {box: [one]}
    statuses: {web: [done]}
    faults: {box: fail, big: {time_out: 2}, web: {crash: task}}
  - name: long
    inputs: [{web: [{text: one}]}]
    expect: {box: {messages: [{text: one}], order: kept}}
    statuses: {web: {each: [{status: done}]}}
    faults: {box: {fail: {}}, big: {time_out: {times: 2}}, web: {crash: {step: task, times: 1}}}
""",
    ).cases
    assert short.inputs == long.inputs == [{"web": [Input(b"one")]}]
    assert short.options.expect == long.options.expect
    assert short.options.statuses == long.options.statuses
    assert short.options.all_faults() == long.options.all_faults()
    assert short.options.all_faults() == [
        faults.fail("box"),
        faults.time_out("big", times=2),
        faults.crash("web", "task"),
    ]


def test_payloads_are_text_json_base64_or_the_lines_of_a_file(folder: Path) -> None:
    (folder / "lines").write_bytes(b"a\r\nb\n\nc\n")
    suite = read(
        folder,
        """
cases:
  - name: every kind
    inputs:
      web:
        - {text: "4", key: k, stream: till, seq: 7, meta: {n: 1}}
        - json: {n: 1, yes: true, no: null, list: [1.5, "2"]}
        - base64: AP8=
        - file: lines
""",
    )
    found = suite.cases[0].inputs[0]["web"]
    assert found[0] == Input(b"4", {"n": "1"}, b"k", None, "till", 7)
    assert [one.payload for one in found[1:]] == [
        b'{"n":1,"yes":true,"no":null,"list":[1.5,"2"]}',
        b"\x00\xff",
        *[b"a", b"b", b"", b"c"],
    ]


def test_json_is_written_once_for_every_alias_and_only_in_messages(folder: Path) -> None:
    case = """
cases:
  - name: a
    inputs: {web: &inputs [&one {json: "text", meta: {json: "4"}}, *one]}
  - name: b
    inputs: {web: *inputs}
"""
    for one in read(folder, case).cases:
        assert one.inputs[0]["web"] == [Input(b'"text"', {"json": "4"})] * 2


def test_the_clock_gives_times_and_faults_know_their_messages(folder: Path) -> None:
    suite = read(
        folder,
        """
cases:
  - name: at night
    clock: {start: "2026-03-01T23:00:00+01:00", step: 10m}
    inputs: {web: [a, b]}
    faults: {box: {fail: {match: {contains: b, meta: {x: y}}, reason: full}, slow: 20ms}}
""",
    )
    clock = suite.cases[0].options.clock.clock()
    assert [clock.tick().isoformat(), clock.tick().isoformat()] == [
        "2026-03-01T23:00:00+01:00",
        "2026-03-01T23:10:00+01:00",
    ]
    assert suite.cases[0].options.all_faults() == [
        faults.fail("box", match=Match(b"b", {"x": "y"}), reason="full"),
        faults.slow("box", 0.02),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cases: [{name: a, «inptus: {web: [x]}}]", "did you mean `inputs`?"),
        ("cases: [{name: a, inputs: {«wbe: [x]}}]", "no receiver `wbe` (did you mean `web`?)"),
        ("cases: [{name: a, inputs: [{web: [x]}, {«wbe: [x]}]}]", "did you mean `web`?"),
        ("cases: [{name: a, inputs: {web: [{«txet: x}]}}]", "did you mean `text`?"),
        ("cases: [{name: a, inputs: {«box: [x]}}]", "`box` is no receiver: it is a sink.dumper"),
        ("cases: [{name: a, expect: {«web: []}}]", "`web` is no sink"),
        ("cases: [{name: a, expect: {«bx: []}}]", "did you mean `box`?"),
        ("cases: [{name: a, faults: {«bxo: fail}}]", "did you mean `box`?"),
        ("cases: [{name: a, faults: {box: «fial}}]", "expected fail, time_out, crash, or a"),
        ("cases: [{name: a, faults: {box: {«fial: 1}}}]", "did you mean `fail`?"),
        ("cases: [{name: a, faults: {box: {crash: «decide}}}]", "did you mean `decided`?"),
        ("cases: [{name: a, real: [«bocks]}]", "has no sink `bocks`"),
        ("cases: [{name: a, real: [box], expect: {box: «[]}}]", "`box` is real"),
        ("cases: [{name: a, inputs: {web: [«{key: k}]}}]", "it has none"),
        ("cases: [{name: a, inputs: {web: [«{text: a, json: 1}]}}]", "it has text and json"),
        ("cases: [{name: a, inputs: {web: [«{file: gone}]}}]", "gone cannot be read"),
        ("cases: [{name: a, inputs: {web: [{base64: «a}]}}]", "expected base64"),
        ("cases: [{name: a, inputs: {web: [x]}, statuses: {web: «[]}}]", "0 statuses for 1 inputs"),
        ("cases: [{name: a, statuses: {web: «gone}}]", "expected"),
        ("cases: [{name: a, clock: {start: «monday}}]", "expected a time like"),
        ("cases: [«{inputs: {}}]", "needs `name`"),
        ("cases: [{name: a}, «{name: a}]", "a second case `a`"),
        ("«flow: orders.yaml", "there are no `cases`"),
        ("«- a", "expected a mapping with `cases`"),
        ("{flow: «gone.yaml, cases: [{name: a}]}", "there is no flow file"),
        ("{«flwo: orders.yaml, cases: [{name: a}]}", "did you mean `flow`?"),
    ],
)
def test_a_mistake_is_reported_at_its_place(folder: Path, text: str, said: str) -> None:
    assert said in only_problem(folder, text)


def test_all_mistakes_are_reported_at_once_those_of_the_flow_too(folder: Path) -> None:
    (folder / "orders.yaml").write_text(FLOW.replace("link.filter", "link.fitler"))
    found = problems(folder, "cases:\n  - {name: a, fault: {}}\n  - {name: b, reel: [box]}\n")
    assert [Path(one.file).name for one in found] == ["orders.test.yaml"] * 2 + ["orders.yaml"]


def test_variables_of_the_flow_come_from_the_file(folder: Path) -> None:
    flow = folder / "orders.yaml"
    flow.write_text(flow.read_text().replace("box.out", '"${OUT}"'))
    suite = read(folder, "env: {OUT: elsewhere}\ncases: [{name: a}]")
    assert suite.flow.components["box"].options.wire()["out"] == "elsewhere"


def test_a_flow_has_several_files_of_cases_and_a_folder_all_of_them(folder: Path) -> None:
    for name in ("orders.test.yaml", "orders.slow.test.yaml", "other.test.yaml"):
        (folder / name).write_text("cases: [{name: a}]")
    (folder / "other.yaml").write_text("")
    names = [path.name for path in suites_of(folder / "orders.yaml")]
    assert names == ["orders.test.yaml", "orders.slow.test.yaml"]
    assert len(suites_of(folder)) == 3
    assert read_suite(folder / "orders.slow.test.yaml").flow.name == "orders"


def test_faults_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="at least once"):
        faults.fail("box", times=0)
    with pytest.raises(ValueError, match="there is no step 'later'"):
        faults.crash("box", "later")  # type: ignore[arg-type]


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(PenstockError, match="cannot be read"):
        read_suite(tmp_path / "orders.test.yaml")


def test_the_case_in_the_guide_is_one_of_the_quickstart(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    guide = (root / "docs" / "guide" / "testing.md").read_text()
    case = guide.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "quickstart.yaml").write_bytes((root / "examples/quickstart.yaml").read_bytes())
    (tmp_path / "quickstart.test.yaml").write_text(case)
    assert len(read_suite(tmp_path / "quickstart.test.yaml").cases) == 1
