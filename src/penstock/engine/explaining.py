"""Spark's own plan of every query of a flow: compiled as the engine does it, run on nothing."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock.config.flow import Flow
from penstock.engine.piece import plan_of_nothing
from penstock.flow.graph import Graph
from penstock.flow.planner import plan
from penstock.log.embedded import EmbeddedLog
from penstock.log.interface import TopicConfig
from penstock.log.names import TopicName
from penstock.spark.compile import Compiled
from penstock.spark.modules import find_modules_beside
from penstock.spark.rows import EVENT
from penstock.spark.session import session
from penstock.spark.values import Shape


def spark_plans(flow: Flow) -> Iterator[tuple[str, str]]:
    """The name of each query, and the plan of its job. Starts Spark, if it does not run.

    The topics are empty ones in a folder that is gone afterwards: the flow's own are not touched, and need
    not exist yet.
    """
    planned = plan(Graph(flow))
    find_modules_beside(flow.file)
    options = flow.system.engine
    spark = session(options.master, f"penstock explain {flow.name}", **options.conf)
    shapes: dict[tuple[str, ...], Shape] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-explain-") as folder:
        log = EmbeddedLog(Path(folder))
        for piece in planned.pieces:
            topics = dict.fromkeys(source.topic for source in piece.sources)
            for topic in topics:
                log.create(TopicName.parse(topic), TopicConfig())
            compiled = Compiled(spark, piece, shapes, Path(folder))
            rows = (
                spark.read.format("penstock")
                .option("dataDir", folder)
                .option("topics", ",".join(topics))
                .option("columns", ",".join(compiled.reads if compiled.head is None else EVENT))
                .load()
            )
            text = io.StringIO()
            with contextlib.redirect_stdout(text):
                plan_of_nothing(compiled, compiled.widened(rows)).explain(mode="formatted")
            yield piece.name, text.getvalue().strip()
