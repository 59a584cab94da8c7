"""Flow files for commands that need one without mistakes."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.exit_codes import NotFound
from penstock.cli.output import complain, human_count
from penstock.config import Flow, inspect
from penstock.errors import ConfigError
from penstock.flow.components import registry


def usable_flow(file: Path, overrides: dict[str, str] | None = None) -> Flow:
    """The flow; or its mistakes on stderr, and ConfigError."""
    if not file.exists():
        raise NotFound(f"there is no flow file {file}")
    loaded = inspect(file, registry=registry(), overrides=overrides)
    for problem in loaded.problems:
        complain(str(problem))
    if loaded.flow is None:
        errors = sum(problem.severity == "error" for problem in loaded.problems)
        raise ConfigError(f"{file}: {human_count(errors, 'mistake')}")
    return loaded.flow


def parse_overrides(settings: list[str]) -> dict[str, str]:
    """`NAME=VALUE` of every `--set`."""
    found = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not (name and equals):
            raise ConfigError(f"--set {setting[:80]!r}: expected NAME=VALUE")
        found[name] = value
    return found
