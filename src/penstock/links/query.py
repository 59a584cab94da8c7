"""Links that run the user's SQL and Python on Spark."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from penstock.config.options import Options, Texts
from penstock.config.registry import Kind, declare


@declare(Kind.LINK, "filter", "Lets through what fits a Spark SQL condition.", available=True)
class FilterOptions(Options):
    condition: str = Field(min_length=1, validation_alias=AliasChoices("condition", "where"))
    """A Spark SQL expression that is true or false."""


@declare(Kind.LINK, "select", "Computes columns by Spark SQL.", available=True)
class SelectOptions(Options):
    columns: Texts = Field(min_length=1)
    """Spark SQL expressions, one a column."""


@declare(Kind.LINK, "sql", "Runs a Spark SQL query over `input`.", available=True)
class SqlOptions(Options):
    query: str = Field(min_length=1)
    """The query. What comes in is the table `input`."""


@declare(Kind.LINK, "python", "Runs a user's function.", available=True)
class PythonOptions(Options):
    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")
    """Where it is: `package.module:function`."""

    mode: Literal["dataframe", "arrow"] = "dataframe"
    """What it takes and gives: DataFrames, or Arrow record batches."""
