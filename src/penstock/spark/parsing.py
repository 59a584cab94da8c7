"""What Spark's own parser says of a user's SQL: which names it speaks of, and where in the text things are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession

from penstock.errors import ConfigError
from penstock.spark.errors import reason_of


def parse_expression(spark: SparkSession, text: str, where: str) -> Any:
    """The tree of an expression, as Spark has it in the JVM."""
    try:
        return _parser(spark).parseExpression(text)
    except ParseException as error:
        raise ConfigError(f"{where}: {text!r}: {reason_of(error)}") from None


def parse_plan(spark: SparkSession, text: str) -> Any:
    """The tree of a query. Raises ParseException."""
    return _parser(spark).parsePlan(text)


def _parser(spark: SparkSession) -> Any:
    return spark._jsparkSession.sessionState().sqlParser()


def kind(node: Any) -> str:
    """The name of a node's class: `Project`, `UnresolvedAttribute`, ..."""
    return str(node.getClass().getSimpleName())


def name(spark: SparkSession, text: str, where: str) -> str:
    """What the column is called that an expression with a name computes."""
    tree = parse_expression(spark, text, where)
    return str(tree.name())


def children(node: Any) -> list[Any]:
    return listed(node.children())


def listed(found: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [found.apply(index) for index in range(found.size())]


def span(node: Any) -> tuple[int, int]:
    """Where a node stands in the text: from, and up to without."""
    origin = node.origin()
    return int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1


def walk(node: Any) -> Iterator[Any]:
    yield node
    for child in children(node):
        yield from walk(child)


def names(tree: Any) -> set[str]:
    """The columns that an expression speaks of, lower case, without their fields.

    `*` stands for all of them, also where a subquery hides what is spoken of.
    """
    match kind(tree):
        case "UnresolvedAttribute" | "UnresolvedNamedLambdaVariable":
            return {str(tree.nameParts().head()).lower()}
        case "LambdaFunction":
            body, *arguments = children(tree)
            own = {name for one in arguments for name in names(one)}
            return names(body) - own
        case "ScalarSubquery" | "Exists" | "ListQuery" | "LateralSubquery":
            return {"*"}
        case name if name.startswith("UnresolvedStar"):
            return {"*"}
    return {name for child in children(tree) for name in names(child)}


def lenient(tree: Any, text: str) -> str:
    """The same text, with casts of parts of a VARIANT that give NULL where they would raise.

    `value:amount::double` raises in Spark even where other casts give NULL, and one message that has a
    word where a number should be would stop the flow.
    """
    return edited(text, lenient_edits(tree, text))


def lenient_edits(tree: Any, text: str) -> list[tuple[int, int, str]]:
    edits: list[tuple[int, int, str]] = []
    for node in walk(tree):
        if kind(node) != "Cast" or "SemiStructuredExtract" not in map(kind, _below(node)):
            continue
        (start, stop), (_, inner) = span(node), span(children(node)[0])
        if text[start : start + 4].lower() == "cast":
            edits.append((start, start, "try_"))
        elif (colons := text.find("::", inner)) >= 0:
            edits += [(start, start, "try_cast("), (colons, colons + 2, " AS "), (stop, stop, ")")]
    return edits


def _below(cast: Any) -> list[Any]:
    """A cast's child, and what that names."""
    child = children(cast)[0]
    return [child, *children(child)] if kind(child) == "Alias" else [child]


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """The text with each span replaced; spans do not overlap."""
    for start, stop, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[stop:]
    return text
