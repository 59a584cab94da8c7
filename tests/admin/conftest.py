from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.supervisor.running import ONE_RECEIVER, Run


@pytest.fixture(scope="package")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A running flow, one for all tests of the API."""
    file: Path = tmp_path_factory.mktemp("admin") / "orders.yaml"
    file.write_text(ONE_RECEIVER)
    with Run(file) as run:
        yield run.wait_ready()
