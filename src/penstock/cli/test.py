"""`penstock test`: run the cases beside flow files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from penstock import logs
from penstock.cli.exit_codes import ExitCode, NotFound
from penstock.cli.output import complain, human_count, line, no_colour, printable
from penstock.config.problems import FlowFileError
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.testing.reading import Case, Suite
    from penstock.testing.suites import CaseResult

_COLOURS = {"passed": "32", "failed": "31;1", "error": "31;1"}


def run_tests(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Flow files, files of cases (*.test.yaml), or folders of them. Default: here.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None, typer.Option("-k", metavar="TEXT", help="Only cases with this in their name.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a case.")] = False,
    junit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write JUnit XML.", show_default=False),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Keep the cases' data directories there, to look into.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Run the cases beside a flow file: inputs, what must come out, and what goes wrong meanwhile.

    The cases of orders.yaml are in orders.test.yaml, or orders.ANYTHING.test.yaml. The flow runs as it is, on
    a real Spark, in a data directory of its own; receivers do not listen, and sinks collect what they
    are given. Exit code 0 if all cases pass, 1 if one does not, 2 if a file has mistakes.
    """
    from penstock.spark.modules import find_modules_beside

    chosen = _chosen(_read(_files(paths or [Path()])), select)
    logs.configure("error", "auto", process="test")
    for suite, _ in chosen:
        find_modules_beside(suite.flow.file)
    show: Callable[[CaseResult], None] = _show_json if as_json else _show
    results = _run(chosen, show, keep)
    if junit is not None:
        from penstock.testing.junit import junit_xml

        junit.write_bytes(junit_xml(results))
    bad = sum(one.status != "passed" for one in results)
    if not as_json:
        line(f"{human_count(len(results) - bad, 'case')} passed, {bad} failed")
    return ExitCode.FAILED if bad else ExitCode.OK


def _files(paths: Sequence[Path]) -> list[Path]:
    from penstock.testing.reading import ENDING, suites_of

    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise NotFound(f"there is no file or folder {path}")
        files = suites_of(path)
        if not files:
            wanted = f"*{ENDING}" if path.is_dir() else path.with_name(path.stem + ENDING)
            raise NotFound(f"{path} has no cases: there is no {wanted}")
        found |= dict.fromkeys(files)
    return list(found)


def _read(files: Sequence[Path]) -> list[Suite]:
    """All of them; or all their mistakes, and nothing is run."""
    from penstock.testing.reading import read_suite

    suites, mistakes = [], 0
    for file in files:
        try:
            suites.append(read_suite(file))
        except FlowFileError as error:
            for problem in error.problems:
                complain(str(problem))
            mistakes += sum(problem.severity == "error" for problem in error.problems)
    if mistakes:
        raise ConfigError(f"{human_count(mistakes, 'mistake')}; nothing was run")
    return suites


def _chosen(suites: Sequence[Suite], select: str | None) -> list[tuple[Suite, Case]]:
    found = [(suite, case) for suite in suites for case in suite.cases]
    if select is None:
        return found
    chosen = [one for one in found if select.lower() in one[1].name.lower()]
    if not chosen:
        raise NotFound(f"none of {human_count(len(found), 'case')} has {select!r} in its name")
    return chosen


def _run(
    chosen: Sequence[tuple[Suite, Case]], show: Callable[[CaseResult], None], keep: Path | None
) -> list[CaseResult]:
    from penstock.testing.runner import FlowRunner
    from penstock.testing.suites import run_case

    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
    results = []
    with FlowRunner(keep=keep) as runner:
        for number, (suite, case) in enumerate(chosen, 1):
            _progress(f"{number} of {len(chosen)}: {case.name}")
            results.append(run_case(runner, suite, case))
            _progress("")
            show(results[-1])
            sys.stdout.flush()
    return results


def _progress(text: str) -> None:
    """What is being run; on a terminal only, and gone when it is over."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{printable(text)[:78]}")
        sys.stderr.flush()


def _show_json(result: CaseResult) -> None:
    line(orjson.dumps(result.to_json()).decode())


def _show(result: CaseResult) -> None:
    colour = sys.stdout.isatty() and not no_colour()
    status = result.status
    shown = f"\x1b[{_COLOURS[status]}m{status}\x1b[0m" if colour else status
    line(f"{shown} {printable(result.case.name)} ({result.seconds:.1f} s)")
    if status != "passed":
        line(f"    {printable(result.where)}")
        for text in result.report().splitlines():
            line(f"    {printable(text)}")
