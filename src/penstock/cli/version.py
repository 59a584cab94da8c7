"""`penstock version`."""

from __future__ import annotations

import platform

from penstock.cli.output import line
from penstock.version import __version__


def version() -> None:
    """Show the versions of Penstock and Python."""
    line(f"penstock {__version__} (Python {platform.python_version()}, {platform.system()})")
