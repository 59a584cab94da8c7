"""For pytest: `pytest_plugins = ["penstock.testing.plugin"]` in your conftest.py.

- The fixture `flow_runner`, one for all tests.
- Files of cases (`orders.test.yaml`) are collected: each case is a test, with the differences as its report.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.config.problems import FlowFileError
from penstock.testing.reading import ENDING, Case, Suite, read_suite
from penstock.testing.runner import FlowRunner
from penstock.testing.suites import run_case

_RUNNER = pytest.StashKey[FlowRunner]()


def _runner(config: pytest.Config) -> FlowRunner:
    if _RUNNER not in config.stash:
        config.stash[_RUNNER] = FlowRunner()
    return config.stash[_RUNNER]


@pytest.fixture(scope="session")
def flow_runner(pytestconfig: pytest.Config) -> FlowRunner:
    """Runs flows on one Spark. It stops the session only if it started it."""
    return _runner(pytestconfig)


def pytest_unconfigure(config: pytest.Config) -> None:
    if _RUNNER in config.stash:
        config.stash[_RUNNER].close()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if not file_path.name.endswith(ENDING):
        return None
    found: pytest.Collector = _File.from_parent(parent, path=file_path)
    return found


class _File(pytest.File):
    def collect(self) -> Iterable[pytest.Item]:
        try:
            suite = read_suite(self.path)
        except FlowFileError as error:
            raise self.CollectError(str(error)) from None
        for case in suite.cases:
            yield _Item.from_parent(self, name=case.name, suite=suite, case=case)


class _CaseFailed(Exception):
    """Its text is the report."""


class _Item(pytest.Item):
    def __init__(self, *, suite: Suite, case: Case, **rest: Any) -> None:
        super().__init__(**rest)
        self._suite = suite
        self._case = case

    def runtest(self) -> None:
        result = run_case(_runner(self.config), self._suite, self._case)
        if result.status != "passed":
            raise _CaseFailed(result.report())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *rest: Any) -> Any:
        if isinstance(excinfo.value, _CaseFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *rest)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._case.line - 1, self._case.name
