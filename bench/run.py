"""`make bench`: run the benchmarks, print the table, keep the numbers.

    python -m bench.run                      everything, five rounds each
    python -m bench.run --quick              a small run that shows that it all works
    python -m bench.run http udp --rounds 9  some of them, with more rounds

A missed goal is printed as MISSED and does not fail the run, because a measurement is not a test;
with --check it does.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench import (
    bulk,
    datagrams,
    extensions,
    growth,
    lines,
    machine,
    outage,
    pipeline,
    posts,
    reads,
    receipts,
    report,
    sinks,
)
from bench.process import Failed
from bench.suite import Row, Suite
from bench.tools import HERE, Missing
from penstock.limits import MAX_INFLIGHT_BYTES, MAX_PENDING_BYTES, MiB
from penstock.version import __version__

BENCHMARKS: dict[str, Callable[[Suite], None]] = {
    module.NAME: module.run
    for module in (
        *(posts, bulk, lines, datagrams, extensions, reads, sinks, growth),
        *(pipeline, receipts, outage),
    )
}
# What the limits let one receiver and one partition hold, and room for the programs themselves.
MEMORY_BOUND_MB = (MAX_INFLIGHT_BYTES + 2 * MAX_PENDING_BYTES + 256 * MiB) / MiB
# With an engine: Spark's heap, half as much for what a JVM takes beside it, and eight of Spark's Python workers.
ENGINE_BOUND_MB = MEMORY_BOUND_MB + 1024 + 512 + 8 * 128
WITH_ENGINE = (receipts.NAME, outage.NAME)

NOISY = 1.3  # a spin loop that takes this many times its best was not alone on its core


def main() -> int:
    options = _options()
    results = Path(options.results).resolve()
    folder = Path(options.dir).resolve() if options.dir else results / "tmp"
    folder = folder / f"run-{time.strftime('%H%M%S')}"
    folder.mkdir(parents=True)
    cores = machine.choose_cores()
    about = machine.describe(folder, cores)
    machine.pin(cores.client)
    suite = Suite(
        rounds=options.rounds or (2 if options.quick else 5),
        quick=options.quick,
        folder=folder,
        cores=cores,
        outage_s=options.outage_s or (15.0 if options.quick else 600.0),
        growth_max=options.growth_max or (3_000_000 if options.quick else 100_000_000),
    )
    signal.signal(signal.SIGTERM, _interrupt)
    _print_machine(about, suite)
    begun = time.time()
    complete = True
    try:
        for name in options.benchmarks or BENCHMARKS:
            _run_one(name, suite)
    except KeyboardInterrupt:
        complete = False
        print("\ninterrupted; what was measured so far:")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    _add_memory(suite)
    whole = complete and not options.quick and not options.benchmarks
    _leave(suite, about, results, options.name, begun, whole=whole)
    short = [row for row in suite.rows if row.verdict in ("MISSED", "MISSING")]
    return 1 if options.check and (short or not complete) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description="Penstock's benchmarks.")
    parser.add_argument("benchmarks", nargs="*", help=f"of: {', '.join(BENCHMARKS)}; default all")
    parser.add_argument("--rounds", type=int, help="rounds of each (5; with --quick 2)")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it all work?")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    parser.add_argument("--name", help="part of the result's file name")
    parser.add_argument("--dir", help="where the data go while it runs: the disk to measure")
    parser.add_argument("--results", default=str(HERE / "results"), help="where results are kept")
    parser.add_argument("--growth-max", type=int, help="messages of the growth benchmark (100M)")
    parser.add_argument("--outage-s", type=float, help="length of the outage benchmark's (600)")
    options = parser.parse_args()
    if unknown := set(options.benchmarks) - set(BENCHMARKS):
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    if options.rounds is not None and not 1 <= options.rounds <= 100:
        parser.error("--rounds takes 1 to 100")
    if options.outage_s is not None and options.outage_s <= 0:
        parser.error("--outage-s takes a time above 0")
    if options.growth_max is not None and options.growth_max < growth.MARKS[0]:
        parser.error(f"--growth-max takes {growth.MARKS[0]} or more")
    return options


def _run_one(name: str, suite: Suite) -> None:
    print(f"{name}", flush=True)
    begun = time.monotonic()
    try:
        BENCHMARKS[name](suite)
    except (Missing, Failed) as error:
        print(f"  {error}", flush=True)
        suite.add(Row(f"{name}: not measured", "x", [], missing=str(error)))
    finally:
        suite.clear(name)
    print(f"  {time.monotonic() - begun:.0f} s", flush=True)


def _add_memory(suite: Suite) -> None:
    for name, peaks in suite.memory.items():
        suite.add(
            Row(
                f"peak memory of Penstock, {name}",
                "MB",
                [peaks["anonymous_mb"]],
                ENGINE_BOUND_MB if name in WITH_ENGINE else MEMORY_BOUND_MB,
                at_most=True,
                note=f"{peaks['rss_mb']:.0f} MB with mapped files",
            )
        )


def _leave(
    suite: Suite,
    about: dict[str, object],
    results: Path,
    name: str | None,
    begun: float,
    *,
    whole: bool,
) -> None:
    name = name or ("full" if whole else "quick" if suite.quick else "part")
    stem = f"{time.strftime('%Y-%m-%d-%H%M', time.localtime(begun))}-{name}"
    json_path, svg_path = results / f"{stem}.json", results / f"{stem}.svg"
    document = {
        "begun": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(begun)),
        "seconds": round(time.time() - begun, 1),
        "name": name,
        "quick": suite.quick,
        "rounds": suite.rounds,
        "version": __version__,
        "commit": _commit(),
        "machine": about,
        "noise": suite.noise(),
        "rows": [row.as_json() for row in suite.rows],
        "memory": suite.memory,
        "raw": suite.raw,
    }
    report.write_json(json_path, document)
    title = f"Penstock {__version__} on {about['cpu']}, {about['cores']} cores, {stem}"
    report.plot(svg_path, suite.rows, title)
    if whole:
        report.publish(json_path, svg_path, results)
    print(f"\n{report.table(suite.rows)}\n")
    _print_noise(suite)
    print(f"kept in {json_path}")
    if suite.quick:
        print("a --quick run shows that the benchmarks work; its numbers mean little")


def _print_machine(about: dict[str, object], suite: Suite) -> None:
    print(
        f"{about['cpu']}, {about['cores']} cores, {about['filesystem']}; servers on core "
        f"{suite.cores.server}, load on core {suite.cores.client}; {suite.rounds} rounds"
    )
    if suite.cores.shared:
        print("only one core: servers and load share it, so the ratios say little")


def _print_noise(suite: Suite) -> None:
    noise = suite.noise()
    if not noise:
        return
    (spin_low, spin_high), (sync_low, sync_high) = noise["spin_ms"], noise["fdatasync_p50_us"]
    print(
        f"probes before the rounds: spin loop {spin_low:.1f} to {spin_high:.1f} ms, "
        f"small fdatasync {sync_low:.0f} to {sync_high:.0f} µs"
    )
    if spin_high > NOISY * spin_low:
        print("the machine was busy with something else at times: run it again when it is not")


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=HERE, text=True, capture_output=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.strip()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
