"""The program in the guide to topics does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.log import TopicConfig
from penstock.log.embedded import EmbeddedLog
from tests.log.contract import TOPIC, payloads

GUIDE = Path(__file__).parents[2] / "docs/guide/topics.md"


def test_the_program_in_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = EmbeddedLog(".penstock")
    log.create(TOPIC, TopicConfig())
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    exec(program, {})
    assert payloads(log.reader(TOPIC, 0)) == [b"first", b"second"]
