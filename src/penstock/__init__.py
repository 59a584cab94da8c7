"""Penstock: events into Spark and out again, exactly once, with a receipt for every message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.sdk.pipeline import pipeline

__all__ = ["__version__", "pipeline"]


def __getattr__(name: str) -> Any:
    """`penstock.pipeline` is loaded when it is used: most processes build no flow in Python."""
    if name != "pipeline":
        raise AttributeError(f"penstock has no {name!r}")
    from penstock.sdk.pipeline import pipeline

    return pipeline
