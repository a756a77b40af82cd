"""The JSON Schema of package configs, for editors: `python -m pipeline.config.schema`. That of reports is
printed by `python -m pipeline.config.schema report`.

Made from the models that parse a config and from the backend catalogue, so it can't say anything
else than they do. What no schema can know (the methods of the model) is left to the parser.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from pipeline.backends import (
    BACKENDS,
    QUANTIZERS,
    RECIPES,
    Options,
    PartitionerSpec,
    QuantizeConfig,
)
from pipeline.backends.options import MODULE_PATTERN
from pipeline.backends.quantize_options import NOT, OVERRIDES, MixedQuantize
from pipeline.config.fields import REFERENCE_PATTERN
from pipeline.config.load import EmitConfig, MethodConfig, PackageConfig, PassSpec, ValidateConfig
from pipeline.config.matrix import AXIS_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Speaks of YAML: a key is left out, never empty, and no title repeats a key."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), bool | int | float | str):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """A schema of draft 2020-12; the order of its keys is fixed.

    A file that names its model and has none of the keys by which files are put together says all
    of its package; of any other, such as one that is there to be extended, this can say only that
    what stands in it may stand there.
    """
    found, schema = models_json_schema(
        [(model, "validation") for model in _models()], schema_generator=_Generator
    )
    definitions = schema["$defs"]
    # Not by the models' own names: where two are called the same, a plugin's and one of ours,
    # pydantic calls both by their modules too.
    names: _Names = {model: _name_in(reference) for (model, _), reference in found.items()}
    package = definitions[names[PackageConfig]]
    del package["properties"]["package"]
    package["required"].remove("package")
    for backend in BACKENDS.values():  # `modules` is an option of every partitioner
        own = definitions[names[backend.options]].setdefault("properties", {})
        own["modules"] = definitions[names[PartitionerSpec]]["properties"]["modules"]
    definitions[names[PartitionerSpec]] = _partitioner(names)
    definitions[names[QuantizeConfig]] = _quantizer(names)
    definitions[names[PassSpec]] = _pass()
    _name_overrides(definitions, names)
    _add_recipes(definitions[names[MethodConfig]])
    if all(backend.options is not Options for backend in BACKENDS.values()):
        del definitions[names[Options]]
    emit, validation = (definitions[names[model]] for model in (EmitConfig, ValidateConfig))
    for mapping in (
        package["properties"]["methods"],
        package["properties"]["constant_methods"],
        emit["properties"]["external_files"],
        validation["properties"]["methods"],
    ):
        mapping["additionalProperties"] = False
    definitions = {name: _with_variables(part) for name, part in definitions.items()}
    package = definitions[names[PackageConfig]]
    definitions |= _parts(definitions, names[PackageConfig])
    keys = _keys(names)
    part = definitions[_part_of(names[PackageConfig])]
    part["properties"]["defaults"] = keys["defaults"]
    definitions[_FILE] = {
        **part,
        "description": "A file that says a part of its packages.",
        "properties": {**part["properties"], **keys},
        "minProperties": 1,
        "title": "File",
    }
    package["properties"] |= {name: keys[name] for name in _PUT_TOGETHER}
    definitions |= {_MATRIX: _matrix(names), _VARIABLE: _VARIABLES}
    together = [{"required": [name]} for name in _PUT_TOGETHER]
    return {
        "$schema": DIALECT,
        "if": {"required": ["model"], "not": {"anyOf": together}},
        "then": _reference(names[PackageConfig]),
        "else": _reference(_FILE),
        "$defs": dict(sorted(definitions.items())),
    }


_Names = dict[Any, str]  # of models' definitions
# Names of definitions that are no model's. None of a model's holds a point.
_FILE, _MATRIX, _VARIABLE = "File.", "Matrix.", "Variable."
_PUT_TOGETHER = ("extends", "defaults", "matrix")
_VARIABLES = {
    "description": "A variable of the environment or of the matrix: ${NAME}, ${NAME:-default}, "
    "${matrix.axis}.",
    "pattern": r"\$\{",
    "type": "string",
}


def _keys(names: _Names) -> dict[str, dict[str, Any]]:
    """By which files are put together."""
    return {
        "extends": {
            "anyOf": [
                {"type": "string"},
                {"items": {"type": "string"}, "minItems": 1, "type": "array"},
            ],
            "description": "The configs that this one stands on, by their names without .yaml; "
            "later ones stand on earlier ones. Mappings are merged, anything else is replaced, and "
            "an empty value takes away.",
        },
        "defaults": {
            **_reference(_part_of(names[MethodConfig])),
            "description": "What holds for every method that is named in `methods`.",
        },
        "matrix": {
            **_reference(_MATRIX),
            "description": "Makes a package of every combination of the values of its axes.",
        },
        "package": {
            "description": "How the packages of a matrix are named, such as asr-${matrix.target}; "
            "by default <file>-<value>-<value>.",
            "type": "string",
        },
    }


_VALUE = {"type": ["string", "number", "boolean"]}


def _combinations(description: str, more: dict[str, Any]) -> dict[str, Any]:
    item = {
        "additionalProperties": False,
        "patternProperties": {AXIS_PATTERN: _VALUE},
        "properties": more,
        "type": "object",
    }
    return {"description": description, "items": item, "type": "array"}


def _matrix(names: _Names) -> dict[str, Any]:
    part = _reference(_part_of(names[PackageConfig]))
    return {
        "additionalProperties": False,
        "description": "Axes. One is a list of values, for ${matrix.axis}, or a mapping of names "
        "to parts of a config, which are merged over the rest of the file.",
        "minProperties": 1,
        "patternProperties": {
            AXIS_PATTERN: {
                "anyOf": [
                    {"items": _VALUE, "minItems": 1, "type": "array"},
                    {
                        "additionalProperties": False,
                        "minProperties": 1,
                        "patternProperties": {".": part},
                        "type": "object",
                    },
                    {"type": "null"},
                ]
            }
        },
        "properties": {
            "exclude": _combinations(
                "Combinations that are left out; an axis that is not named may have any value.", {}
            ),
            "include": _combinations(
                "More combinations, or ones to whose `config` more is added.",
                {"config": {**part, "description": "Merged over the rest in these packages."}},
            ),
        },
        "title": "Matrix",
        "type": "object",
    }


def _with_variables(schema: Any) -> Any:
    """The same with a variable in place of any value that not every text could be."""
    if isinstance(schema, list):
        return [_with_variables(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    value = schema.get("type")
    if value in ("boolean", "integer", "number") or "enum" in schema or "pattern" in schema:
        outside = {key: schema[key] for key in ("description", "default") if key in schema}
        inside = {key: each for key, each in schema.items() if key not in outside}
        return {"anyOf": [inside, _reference(_VARIABLE)], **outside}
    return {
        key: each
        if key in ("required", "default")
        else {name: _with_variables(part) for name, part in each.items()}
        if key in ("properties", "patternProperties")
        else _with_variables(each)
        for key, each in schema.items()
    }


def _parts(definitions: dict[str, Any], package: str) -> dict[str, Any]:
    """Definitions of parts of what the definitions define, reachable from a `package`'s: nothing is
    required, and an empty value takes away. Lists are written as a whole, and so is what is in
    them."""
    made: dict[str, Any] = {}

    def part(schema: Any) -> Any:
        if "$ref" in schema:
            name = _name_in(schema)
            if name == _VARIABLE:
                return schema
            if name not in made:
                made[name] = {}
                made[name] = part(definitions[name])
            return {**schema, **_reference(_part_of(name))}
        if "anyOf" in schema:
            return {**schema, "anyOf": [part(each) for each in schema["anyOf"]]}
        if schema.get("type") != "object":
            return schema
        skipped = ("required", "oneOf", "minProperties", "title")
        result = {key: each for key, each in schema.items() if key not in skipped}
        for key in ("properties", "patternProperties"):
            if key in schema:
                result[key] = {name: or_empty(part(each)) for name, each in schema[key].items()}
        return result

    def or_empty(schema: dict[str, Any]) -> dict[str, Any]:
        if "const" in schema:
            return schema
        outside: dict[str, Any] = {k: schema[k] for k in ("description", "default") if k in schema}
        inside = {key: each for key, each in schema.items() if key not in outside}
        if "$ref" in inside and not outside:
            outside = {"description": definitions[_whole(inside)].get("description", "")}
        options = inside["anyOf"] if list(inside) == ["anyOf"] else [inside]
        return {"anyOf": [*options, {"type": "null"}], **outside}

    def _whole(schema: dict[str, Any]) -> str:
        return _name_in(schema).removesuffix(_part_of(""))

    part(_reference(package))
    return {
        _part_of(name): {**each, "title": _part_of(name).replace(".", "")}
        for name, each in made.items()
    }


def _part_of(name: str) -> str:
    return f"{name}.Part"


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _name_in(reference: JsonSchemaValue) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _models() -> Iterator[type[BaseModel]]:
    """Those whose definitions are asked for; a package's holds further ones."""
    yield from (PackageConfig, MethodConfig, PartitionerSpec, QuantizeConfig, PassSpec)
    yield from (EmitConfig, ValidateConfig, Options)
    for backend in BACKENDS.values():
        yield backend.options
    for quantizer in QUANTIZERS.values():
        yield quantizer.options
        if issubclass(quantizer.options, MixedQuantize) and quantizer.options.scheme.model_fields:
            yield quantizer.options.scheme


def _partitioner(names: _Names) -> dict[str, Any]:
    """A backend's name, or one key with its options."""
    options = {name: _reference(names[backend.options]) for name, backend in BACKENDS.items()}
    return {
        "anyOf": [
            {"enum": list(BACKENDS)},
            {
                "type": "object",
                "properties": options,
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            },
        ]
    }


def _pass() -> dict[str, Any]:
    """A reference, or one as a key with its options, which are the pass's own."""
    return {
        "anyOf": [
            {"type": "string", "pattern": REFERENCE_PATTERN},
            {
                "type": "object",
                "patternProperties": {REFERENCE_PATTERN: {"type": ["object"]}},
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            },
        ]
    }


def _name_overrides(definitions: dict[str, Any], names: _Names) -> None:
    """Gives what overrides a quantizer's options a name, and closes the mappings of them."""
    for quantizer in QUANTIZERS.values():
        if issubclass(quantizer.options, MixedQuantize):
            scheme, reference = quantizer.options.scheme, {"const": NOT}
            if scheme.model_fields:
                override = f"{names[scheme]}.Override"
                definitions[override] = {"anyOf": [_reference(names[scheme]), {"const": NOT}]}
                reference = _reference(override)
            of = definitions[names[quantizer.options]]["properties"]
            told = of["operators"].pop("propertyNames")
            operators = told.get("enum") or [told["const"]]
            of["operators"]["properties"] = dict.fromkeys(operators, reference)
            of["modules"]["patternProperties"] = {MODULE_PATTERN: reference}
            for kind in OVERRIDES:
                of[kind]["additionalProperties"] = False


def _add_recipes(method: dict[str, Any]) -> None:
    """A method says its partitioners, or a recipe that says them and how it is quantized."""
    names = [name for name, recipe in RECIPES.items() if not recipe.refused]
    described = "A recipe of ExecuTorch's, instead of `quantize` and `partitioners`."
    method["properties"]["recipe"] = {"enum": names, "description": described}
    del method["required"]
    method["oneOf"] = [
        {"required": ["partitioners"]},
        {"required": ["recipe"], "properties": {"quantize": False}},
    ]


def _quantizer(names: _Names) -> dict[str, Any]:
    return {"anyOf": [_reference(names[each.options]) for each in QUANTIZERS.values()]}


if __name__ == "__main__":
    if sys.argv[1:] == ["report"]:
        from pipeline.report.schema import report_schema

        print(json.dumps(report_schema(), indent=2))
    else:
        print(json.dumps(json_schema(), indent=2))
