"""`make fuzz`: every fuzz target, one after another, each for a while.

    python -m tests.fuzz [NAME ...] [--seconds 60] [--runs N]

What a target has reached stays in `.fuzz/NAME`, where the next run goes on from; it begins with what the generators of
the tests draw. An input that fails is left in `.fuzz/NAME.failed-...`: put it into a test once it is fixed.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from tests.fuzz.running import TARGETS

FOLDER = Path(__file__).resolve().parents[2] / ".fuzz"
_DRAWN = 200
_SLOWEST_S = 25
"""One input may take this long; then it counts as a failure."""


def fuzz(name: str, folder: Path, options: Sequence[str]) -> int:
    """The exit code of the fuzzer: 0 if nothing failed."""
    corpus = folder / name
    corpus.mkdir(parents=True, exist_ok=True)
    if not any(corpus.iterdir()):
        rng = random.Random(name)
        sample = import_module(f"tests.fuzz.test_fuzz_{name}").sample
        for number in range(_DRAWN):
            (corpus / f"drawn-{number}").write_bytes(sample(rng))
    command = [sys.executable, "-m", "tests.fuzz.running", name, *options, f"-timeout={_SLOWEST_S}"]
    command += [f"-artifact_prefix={folder / name}.failed-", "-print_final_stats=1", str(corpus)]
    return subprocess.run(command, cwd=FOLDER.parent, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each; default: no limit")
    given = parser.parse_args()
    if unknown := set(given.names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    options = [f"-max_total_time={given.seconds}", f"-runs={given.runs}"]
    failed = [name for name in given.names or TARGETS if fuzz(name, FOLDER, options) != 0]
    print(f"failed: {', '.join(failed)}" if failed else "nothing failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
