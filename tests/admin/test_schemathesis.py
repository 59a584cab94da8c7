"""Requests made up from the API's own description, valid and not, against a running flow.

Every default check is on. What it found is kept by name in `test_requests.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from penstock.admin.app import build_app
from penstock.log.embedded import EmbeddedLog
from penstock.supervisor.overview import Overview
from tests.supervisor.running import Run

pytestmark = pytest.mark.slow

# The description needs neither a flow nor a log: those are for answering.
_document = build_app(
    cast(Overview, None), EmbeddedLog(Path("/nonexistent")), own_host=None
).openapi()
api = schemathesis.openapi.from_dict(_document)


@api.parametrize()
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_every_answer_is_as_described(case: schemathesis.Case, flow: Run) -> None:
    case.call_and_validate(base_url=f"http://{flow.addresses['admin']}", timeout=30)


def test_the_description_that_is_served_is_this_one(flow: Run) -> None:
    assert flow.call("GET", "/openapi.json") == (200, _document)
