"""Where the functions of a flow are found: as everywhere in Python, and in the folder of the flow file."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def find_modules_beside(file: Path) -> None:
    """From now on, in this process and in those that it starts: Spark's Python workers among them."""
    folder = str(file.absolute().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*known, folder])
