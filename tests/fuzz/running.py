"""Runs one fuzz target: `python -m tests.fuzz.running NAME [options of libFuzzer] FOLDER`.

With atheris, which lets what the inputs reach in Penstock's own code decide which come next. It cannot be had for every
Python and machine (see `pyproject.toml`); there, inputs are drawn by the generators of the tests, as many or for
as long as the options say.
"""

from __future__ import annotations

import importlib
import platform
import random
import sys
import time
from collections.abc import Sequence

TARGETS = ("config", "connector", "framing", "http")
HAS_ATHERIS = sys.version_info < (3, 14) and platform.machine() == "x86_64"
"""Where the locked dependencies hold it. There it must work: nothing takes its place silently."""


def run_guided(name: str, options: Sequence[str]) -> None:
    import atheris

    # Only our own code: what it stands on is other people's to fuzz, and takes half a minute to instrument.
    with atheris.instrument_imports(include=["penstock"]):
        target = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    atheris.Setup([sys.argv[0], *options], target.TestOneInput)
    atheris.Fuzz()


def run_drawn(name: str, options: Sequence[str]) -> None:
    given = dict(one[1:].split("=", 1) for one in options if one.startswith("-") and "=" in one)
    runs, seconds = int(given.get("runs", -1)), float(given.get("max_total_time", 0))
    seed = int(given.get("seed", 0)) or random.randrange(1, 1 << 32)
    print(f"no atheris for this Python or machine: inputs are drawn, -seed={seed}", flush=True)
    target = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    sample = importlib.import_module(f"tests.fuzz.test_fuzz_{name}").sample
    rng, began, done = random.Random(seed), time.monotonic(), 0
    while done != runs and not 0 < seconds <= time.monotonic() - began:
        data = sample(rng)
        try:
            target.TestOneInput(data)
        except BaseException:
            print(f"fails on {data!r}", flush=True)
            raise
        done += 1
    print(f"Done {done} runs", flush=True)


if __name__ == "__main__":
    run = run_guided if HAS_ATHERIS else run_drawn
    run(sys.argv[1], sys.argv[2:])
