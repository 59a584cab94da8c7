"""link.filter: rows for which the condition is true go on; the others have done their duty.

A condition that is NULL is not true. A value that cannot be converted as the condition asks is NULL.
"""

from __future__ import annotations

from penstock.flow.plan import Place
from penstock.links.query import FilterOptions
from penstock.spark.rows import Rows
from penstock.spark.scope import Scope


def apply(rows: Rows, place: Place, options: FilterOptions, scope: Scope) -> Rows:
    found = scope.open(rows, place, [options.condition])
    [condition] = found.expressions
    return found.rows.go_on(
        place, place.routes[0], valid=found.reading.valid, keep=f"({condition})"
    )
