"""The JSON Schema (2020-12) of the flow file, for editors. Made from the models; nothing is written twice.

It knows what the models know: every spelling of every key, and the options of each module. What takes
the whole file to see (cycles, ports, names that do not exist) is for `penstock check`.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from penstock.config.model import (
    ComponentOptions,
    FlowOptions,
    SystemOptions,
    TopicOptions,
    WiringOptions,
    WorkflowOptions,
)
from penstock.config.options import Options
from penstock.config.registry import Declaration, Kind, Registry, module_spellings

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DEFS = "#/$defs/"

Schema = dict[str, Any]


def flow_schema(registry: Registry) -> Schema:
    """The schema of a flow file that may use the components of this registry."""
    declarations = list(registry)
    models = [SystemOptions, FlowOptions, TopicOptions, WorkflowOptions, ComponentOptions]
    models += [WiringOptions, *(one.options for one in declarations)]
    inputs = [(model, "validation") for model in dict.fromkeys(models)]
    refs, definitions = models_json_schema(inputs, ref_template=_DEFS + "{model}")  # type: ignore[arg-type]
    defs: Schema = definitions["$defs"]

    def ref(model: type[Options]) -> Schema:
        return {"$ref": refs[(model, "validation")]["$ref"]}

    properties = dict(defs.pop("FlowOptions")["properties"])
    component = _component(defs.pop("ComponentOptions"), declarations, ref)
    defs["Component"] = component
    defs["Interceptor"] = _stage(registry.of_kind(Kind.INTERCEPTOR), ref)
    defs["Codec"] = _stage(registry.of_kind(Kind.CODEC), ref)
    components = {"type": "object", "additionalProperties": {"$ref": _DEFS + "Component"}}
    properties |= {
        "system": {"anyOf": [ref(SystemOptions), {"type": "null"}]},
        "components": components,
        "actors": {**components, "deprecated": True},
        "pipeline": _map_of(ref(WiringOptions)),
        "topics": _map_of(ref(TopicOptions)),
        "workflows": _map_of(ref(WorkflowOptions)),
    }
    schema: Schema = {
        "$schema": DIALECT,
        "title": "Penstock flow file",
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
        "anyOf": [{"required": ["components"]}, {"required": ["actors"]}],
        "$defs": dict(sorted(defs.items())),
    }
    return _referable(schema)


def options_schema(model: type[Options]) -> Schema:
    """The schema of one model's options."""
    return _referable(model.model_json_schema())


def _map_of(schema: Schema) -> Schema:
    return {
        "type": ["object", "null"],
        "additionalProperties": {"anyOf": [schema, {"type": "null"}]},
    }


def _component(own: Schema, declarations: list[Declaration], ref: Any) -> Schema:
    """An entry of `components`: which options `params` may have depends on `module`."""
    modules = [one for one in declarations if one.kind.is_module]
    names = [name for one in modules for name in module_spellings(one)]
    properties = dict(own["properties"])
    properties["module"] = {
        "description": properties["module"]["description"],
        # What the original relay's newer files leave to the address.
        "enum": [*names, "core.sink", "core.receiver"],
    }
    properties["interceptors"] = {
        "description": properties["interceptors"]["description"],
        "anyOf": [
            {"type": "array", "items": {"$ref": _DEFS + "Interceptor"}},
            {"$ref": _DEFS + "Interceptor"},
            {"type": "null"},
        ],
    }
    properties["codec"] = {
        "description": properties["codec"]["description"],
        "anyOf": [{"$ref": _DEFS + "Codec"}, {"type": "null"}],
    }
    properties["params"] = {
        "description": properties["params"]["description"],
        "type": ["object", "null"],
    }
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "oneOf": [{"required": ["module"]}, {"required": ["plugin"]}],
        "allOf": [_params_of(one, ref) for one in modules],
    }


def _params_of(declaration: Declaration, ref: Any) -> Schema:
    needs = any(info.is_required() for info in declaration.options.model_fields.values())
    options = ref(declaration.options)
    then: Schema = {
        "properties": {
            "params": options if needs else {"anyOf": [options, {"type": "null"}]},
        }
    }
    if needs:
        then["required"] = ["params"]
    return {
        "if": {
            "properties": {"module": {"enum": module_spellings(declaration)}},
            "required": ["module"],
        },
        "then": then,
    }


def _stage(declarations: list[Declaration], ref: Any) -> Schema:
    """A name, or a map of one name to its options."""
    names = [name for one in declarations for name in (one.name, *one.aliases)]
    return {
        "anyOf": [
            {"enum": names},
            {
                "type": "object",
                "minProperties": 1,
                "maxProperties": 1,
                "additionalProperties": False,
                "properties": {
                    name: {"anyOf": [ref(one.options), {"type": "null"}]}
                    for one in declarations
                    for name in (one.name, *one.aliases)
                },
            },
        ]
    }


def _referable(schema: Schema) -> Schema:
    walked: Schema = _with_references(schema)
    return walked


_REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
_TYPED = ("integer", "number", "boolean")


def _with_references(schema: Any) -> Any:
    """Let `${...}` stand wherever a value is expected that is not any text."""
    if isinstance(schema, list):
        return [_with_references(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # Inside `if`, the schema picks by module and must stay exact.
    walked = {
        key: value if key in ("if", "default", "enum", "examples") else _with_references(value)
        for key, value in schema.items()
    }
    exact = schema.get("type") in _TYPED or "enum" in schema or "const" in schema
    if not exact and not ("pattern" in schema and schema.get("pattern") != _REFERENCE["pattern"]):
        return walked
    about = {key: walked.pop(key) for key in ("title", "description", "default") if key in walked}
    return {**about, "anyOf": [walked, _REFERENCE]}
