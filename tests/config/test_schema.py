"""The JSON Schema agrees with the loader wherever it can."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from penstock.config.schema import flow_schema, options_schema
from penstock.flow.components import registry
from tests.config.files import OUT, TINY
from tests.config.test_definitions import FULFIL
from tests.config.test_flows import EXAMPLES, RELAY
from tests.config.test_mistakes import SPELLING

VALIDATOR = Draft202012Validator(flow_schema(registry()))
NEEDS_THE_WHOLE_FILE = {"a target", "a component in the pipeline", "a route's target"}


def errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema():
    Draft202012Validator.check_schema(flow_schema(registry()))
    for one in registry():
        Draft202012Validator.check_schema(options_schema(one.options))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_fit(path: Path):
    assert errors(path.read_text()) == []


@pytest.mark.parametrize("name", RELAY)
def test_files_of_the_original_relay_fit(name):
    assert errors(RELAY[name]) == []


def test_definitions_fit():
    assert (
        errors(TINY + FULFIL + "topics: {a: {retention: kept}, b: {retention: {time: 7d}}}\n") == []
    )


@pytest.mark.parametrize("name", sorted(set(SPELLING) - NEEDS_THE_WHOLE_FILE))
def test_wrong_spellings_do_not_fit(name):
    assert errors(SPELLING[name][0].replace("«", "")) != []


def test_references_fit_where_numbers_are_expected():
    text = "system: {maxprocs: '${N}', admin: {enabled: '${ON:true}'}}\n" + TINY
    assert errors(text) == []
    assert errors(text.replace("'${N}'", "many")) != []


def test_required_options_may_have_any_of_their_spellings():
    text = f"components: {{a: {{module: receiver.tcp, params: {{KEY: 1}}}}, o: {OUT}}}\n"
    assert errors(text.replace("KEY", "bind_addr")) == []
    assert errors(text.replace("KEY: 1", "reply: none")) != []
    assert errors("components: {a: {module: receiver.tcp}}\n") != []


def test_keys_for_one_s_own_use_fit():
    assert errors("x-mine: {a: [1]}\n" + TINY) == []
