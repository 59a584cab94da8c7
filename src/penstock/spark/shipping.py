"""Penstock's own code for the workers of a cluster, from the driver: so both are of one version.

What it needs (PySpark, pyarrow and the rest) must be installed there.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

from pyspark import SparkContext

import penstock
from penstock.version import __version__

PACKAGE = Path(penstock.__file__).parent


def ship(context: SparkContext) -> None:
    """Before anything of ours is handed to Spark, which notes down then what its workers are to import."""
    # Spark serves the file from where it lies, and removes that folder when it ends.
    folder = Path(context._temp_dir)
    context.addPyFile(str(_zipped(folder / f"penstock-{__version__}.zip")))


def _zipped(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(PACKAGE.rglob("*.py")):
            archive.write(file, Path(PACKAGE.name) / file.relative_to(PACKAGE))
    return path
