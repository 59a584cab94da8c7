"""`penstock graph`: every component and every link, in every form, whatever routes are called."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands import Result

FLOW = r"""
name: hard
components:
  web: {module: receiver.http, params: {bind: "127.0.0.1:7071"}}
  by: {module: link.router, params: {routing_key: dest}}
  copy: {module: link.multiplexer}
  near: {module: sink.dumper}
  far: {module: sink.dumper}
  mine: {plugin: p, constructor: New}
pipeline:
  web: {connect: by}
  by: {routes: {"a\"<&>\\\n\x01": copy, 漢字é: far, "a rather long name of a route": mine}}
  copy: {links: [near, far]}
"""
LINKS = ["web by", "by copy", "by far", "by mine", "copy near", "copy far"]
# A link that passes a column (by → far) has a place of its own there, and lines that meet are joined.
DRAWN = """\
+---------------+    +-------------+                                +------------------+        +-------------+
| web           +--->| by          +-+- a"<&>\\?? ------------------>| copy             +---+--->| near        |
| receiver.http |    | link.router | |                              | link.multiplexer |   |    | sink.dumper |
+---------------+    +-------------+ |                              +------------------+   |    +-------------+
                                     |                                                     |
                                     |                              +------------------+   |    +-------------+
                                     +- a rather long name of a~ -->| mine             | +-+--->| far         |
                                     |                              | plugin.p         | |      | sink.dumper |
                                     |                              +------------------+ |      +-------------+
                                     |                                                   |
                                     +- ??? ---------------------------------------------+
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def drawn(tmp_path: Path, here: Callable[..., Result]) -> Callable[..., str]:
    path = tmp_path / "hard.yaml"
    path.write_text(FLOW)

    def draw(*options: str) -> str:
        done = here("graph", path, *options)
        assert (done.code, done.err) == (0, "")
        return done.out

    return draw


def test_text_for_a_terminal(drawn: Callable[..., str]) -> None:
    assert drawn("--ascii") == DRAWN
    boxes = drawn().splitlines()
    assert boxes[1].startswith("│ web           ├───▶│ by          ├─┬─ a")
    assert boxes[-1].strip().startswith("└─ ??é ───"), "one cell a character"
    assert list(map(len, boxes)) == list(map(len, DRAWN.splitlines()))


def test_mermaid(drawn: Callable[..., str]) -> None:
    head, *lines = drawn("-f", "mermaid").splitlines()
    assert head == "flowchart LR"
    names = dict(re.match(r' *(n\d)\W+"(\w+)<br/>', line).groups() for line in lines[:6])  # type: ignore[union-attr]
    found = [re.fullmatch(r" *(n\d) -->(.*) (n\d)", line) for line in lines[6:]]
    assert [f"{names[one[1]]} {names[one[3]]}" for one in found if one] == LINKS
    labels = {one[2] for one in found if one}
    assert {'|"a#34;#60;#38;#62;#92;  "|', '|"漢字é"|', ""} < labels
    assert '  n5[["mine<br/><small>plugin.p</small>"]]' in lines


def test_dot(drawn: Callable[..., str]) -> None:
    lines = drawn("--format", "dot").splitlines()
    assert (lines[0], lines[-1]) == ('digraph "hard" {', "}")
    assert '  "near" [label="near\\nsink.dumper", shape=cylinder];' in lines
    assert '  "by" -> "copy" [label="a\\"<&>\\\\\\n "];' in lines
    assert [" ".join(re.findall(r'"(\w+)"', one)[:2]) for one in lines if "->" in one] == LINKS


def test_svg_in_which_lines_go_from_box_to_box(drawn: Callable[..., str], tmp_path: Path) -> None:
    assert drawn("-f", "svg", "-o", str(tmp_path / "flow.svg")) == ""
    picture = ET.fromstring((tmp_path / "flow.svg").read_text("utf-8"))
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    boxes = []
    for group in picture.iter(f"{SVG}g"):
        box, name, _ = list(group)[1:]
        x, y, w, h = (float(box.attrib[key]) for key in ("x", "y", "width", "height"))
        assert 0 < x < x + w < width
        assert 0 < y < y + h < height
        boxes.append((name.text, x, x + w, y + h / 2))
    found = []
    for line in picture.iter(f"{SVG}path"):
        if line.attrib["class"] == "line":
            numbers = list(map(float, re.findall(r"[\d.]+", line.attrib["d"])))
            (x1, y1), (x2, y2) = numbers[:2], numbers[-2:]
            found += [
                f"{one} {other}"
                for one, _, right, here in boxes
                for other, left, _, there in boxes
                if (x1, y1, x2, y2) == pytest.approx((right, here, left, there), abs=0.2)
            ]
    assert sorted(found) == sorted(LINKS)
    routes = [one.text for one in picture.iter(f"{SVG}text") if one.attrib["class"] == "route"]
    assert sorted(map(str, routes)) == ["a rather long name of a…", 'a"<&>\\??', "漢字é"]


def test_what_cannot_be_drawn_or_written_is_one_line(
    drawn: Callable[..., str], here: Callable[..., Result], tmp_path: Path
) -> None:
    path = tmp_path / "hard.yaml"
    refused = here("graph", path, "-f", "pdf")
    assert (refused.code, refused.out) == (2, "")
    assert "'text', 'mermaid', 'dot', 'svg'" in refused.err
    unwritten = here("graph", path, "-o", tmp_path / "no" / "such" / "folder")
    assert (unwritten.code, unwritten.err.count("\n")) == (1, 1)
    assert f"{tmp_path}/no/such/folder: No such file" in unwritten.err
