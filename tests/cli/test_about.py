"""What Penstock says of itself and its components: `list`, `schema`, `version`."""

from __future__ import annotations

import json
import platform
import tomllib
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from penstock.flow.components import registry
from tests.cli.commands import Result
from tests.config.files import TINY

ROOT = Path(__file__).parents[2]


def test_list_has_every_component(here: Callable[..., Result]) -> None:
    rows = [line.split("\t") for line in here("list").out.splitlines()]
    assert [row[:2] for row in rows] == [
        [str(one.kind), ", ".join((one.name, *one.aliases))] for one in registry()
    ]
    assert {row[2] for row in rows} <= {"available", "later"}
    assert ["link", "multiplexer, demux, mpx", "available"] in [row[:3] for row in rows]
    links = [line.split("\t") for line in here("list", "links").out.splitlines()]
    assert links == [row for row in rows if row[0] == "link"]


def test_list_of_one_has_its_options(here: Callable[..., Result]) -> None:
    for command in (["receiver.http"], ["receiver", "http"], ["receivers", "http"]):
        rows = {
            row[0]: row[1:]
            for row in (line.split("\t") for line in here("list", *command).out.splitlines())
        }
        assert rows["bind, bind_addr"][:2] == ["address", "required"]
        assert rows["max_message_bytes"][1] == "8MiB"
    [told] = json.loads(here("list", "receiver", "http", "--json").out)
    assert (told["module"], told["available"]) == ("receiver.http", True)
    assert "bind" in told["options"]["properties"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["linx"], "there is no kind 'linx'; there are receiver, link,"),
        (["sink", "dumpr"], "there is no sink 'dumpr'; did you mean `dumper`?"),
        (["receiver.htpp"], "there is no module 'receiver.htpp'; did you mean `receiver.http`?"),
        (["receiver", "zzzz"], "there is no receiver 'zzzz'\n"),
    ],
)
def test_list_of_what_is_not_there(
    here: Callable[..., Result], arguments: list[str], said: str
) -> None:
    done = here("list", *arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_schema_takes_what_check_takes(here: Callable[..., Result], tmp_path: Path) -> None:
    done = here("schema")
    schema = json.loads(done.out)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(yaml.safe_load(TINY), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(TINY.replace("sink.dumper", "sink.dumpr")), schema)
    assert here("schema", "-o", tmp_path / "flow.json").out == ""
    assert (tmp_path / "flow.json").read_text() == done.out
    assert here("schema", "-o", tmp_path / "no" / "folder").code == 1


def test_version(here: Callable[..., Result]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    told = f"penstock {version} (Python {platform.python_version()}, {platform.system()})\n"
    assert here("version") == Result(0, told, "")
    assert here("--version") == Result(0, f"penstock {version}\n", "")
    assert here("version", "now").code == 2
    assert here("versoin").code == 2


@pytest.mark.parametrize("group", [[], ["config"], ["topics"], ["deadletter"]])
def test_a_command_alone_shows_its_help_and_nothing_else(
    here: Callable[..., Result], group: list[str]
) -> None:
    done = here(*group)
    assert done.code == 2
    assert " ".join(["Usage: penstock", *group]) in done.out
    assert done.err == ""
