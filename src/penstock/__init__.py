"""Penstock: events into Spark and out again, exactly once, with a receipt for every message."""

from penstock.version import __version__

__all__ = ["__version__"]
