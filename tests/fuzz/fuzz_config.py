"""A fuzz target: the flow file.

What must hold for any bytes whatever:

- they give a flow or problems, never an exception, and never neither;
- problems are bounded in number and length, in order, and inside the file;
- a flow can be ordered, drawn and explained;
- the contents of a secret file are in none of it.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from penstock.config import Loaded, inspect_bytes
from penstock.config.guarantees import path_guarantees
from penstock.errors import ConfigError
from penstock.flow.components import registry
from penstock.flow.drawing import Format, draw
from penstock.flow.graph import Graph
from penstock.limits import MAX_PROBLEMS

SECRET = "fuzz-must-not-see-this"
MAX_MESSAGE_CHARS = 5000
ENVIRONMENT = {"A": "1", "B": "x: {y", "HOST": "127.0.0.1", "PENSTOCK_MAXPROCS": "2"}

_folder = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
(_folder / "s").write_text(SECRET)


def TestOneInput(data: bytes) -> None:
    loaded = inspect_bytes(
        data, _folder / "flow.yaml", registry=registry(), environment=ENVIRONMENT
    )
    _check_problems(loaded, data)
    if loaded.flow is None:
        assert any(problem.severity == "error" for problem in loaded.problems)
        return
    flow = loaded.flow
    graph = Graph(flow)
    assert sorted(graph.order) == sorted(graph.nodes)
    shown = [repr(flow), str(flow.settings), str(path_guarantees(flow.components, flow.edges))]
    for form in Format:
        with contextlib.suppress(ConfigError):  # too large to draw
            shown.append(draw(graph, form))
    flow.missing()
    assert not any(SECRET in text for text in shown)


def _check_problems(loaded: Loaded, data: bytes) -> None:
    assert len(loaded.problems) <= MAX_PROBLEMS + 1
    lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\xc2\x85") + 2
    lines += data.count(b"\xe2\x80\xa8") + data.count(b"\xe2\x80\xa9")
    for problem in loaded.problems:
        text = str(problem)
        assert SECRET not in text
        assert len(text) <= MAX_MESSAGE_CHARS
        assert "\n" not in text
        assert 0 <= problem.line <= lines
