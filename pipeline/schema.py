"""The JSON Schema of package configs, for editors: `python -m pipeline.schema`.

Made from the models that parse a config and from the backend catalogue, so it can't say anything
else than they do. What no schema can know (the methods of the model) is left to the parser.
"""

from __future__ import annotations

import json
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
from pipeline.config import EmitConfig, MethodConfig, PackageConfig, PassSpec, ValidateConfig
from pipeline.config_models import REFERENCE_PATTERN
from pipeline.matrix import AXIS_PATTERN

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
    models: list[type[BaseModel]] = [PackageConfig, *_backend_models()]
    _, schema = models_json_schema(
        [(model, "validation") for model in models], schema_generator=_Generator
    )
    definitions = schema["$defs"]
    package = definitions[PackageConfig.__name__]
    del package["properties"]["package"]
    package["required"].remove("package")
    for backend in BACKENDS.values():  # `modules` is an option of every partitioner
        own = definitions[backend.options.__name__].setdefault("properties", {})
        own["modules"] = definitions[PartitionerSpec.__name__]["properties"]["modules"]
    definitions[PartitionerSpec.__name__] = _partitioner()
    definitions[QuantizeConfig.__name__] = _quantizer()
    definitions[PassSpec.__name__] = _pass()
    _name_overrides(definitions)
    _add_recipes(definitions[MethodConfig.__name__])
    del definitions[Options.__name__]
    emit, validation = (definitions[model.__name__] for model in (EmitConfig, ValidateConfig))
    for mapping in (
        package["properties"]["methods"],
        package["properties"]["constant_methods"],
        emit["properties"]["external_files"],
        validation["properties"]["methods"],
    ):
        mapping["additionalProperties"] = False
    definitions = {name: _with_variables(part) for name, part in definitions.items()}
    package = definitions[PackageConfig.__name__]
    definitions |= _parts(definitions)
    part = definitions[_part_of(PackageConfig.__name__)]
    part["properties"]["defaults"] = _KEYS["defaults"]
    definitions["File"] = {
        **part,
        "description": "A file that says a part of its packages.",
        "properties": {**part["properties"], **_KEYS},
        "minProperties": 1,
        "title": "File",
    }
    package["properties"] |= {name: _KEYS[name] for name in _PUT_TOGETHER}
    definitions |= {"Matrix": _MATRIX, "Variable": _VARIABLE}
    together = [{"required": [name]} for name in _PUT_TOGETHER]
    return {
        "$schema": DIALECT,
        "if": {"required": ["model"], "not": {"anyOf": together}},
        "then": {"$ref": f"#/$defs/{PackageConfig.__name__}"},
        "else": {"$ref": "#/$defs/File"},
        "$defs": dict(sorted(definitions.items())),
    }


_PUT_TOGETHER = ("extends", "defaults", "matrix")
_VARIABLE = {
    "description": "A variable of the environment or of the matrix: ${NAME}, ${NAME:-default}, "
    "${matrix.axis}.",
    "pattern": r"\$\{",
    "type": "string",
}
_KEYS: dict[str, dict[str, Any]] = {
    "extends": {
        "anyOf": [
            {"type": "string"},
            {"items": {"type": "string"}, "minItems": 1, "type": "array"},
        ],
        "description": "The configs that this one stands on, by their names without .yaml; later "
        "ones stand on earlier ones. Mappings are merged, anything else is replaced, and an empty "
        "value takes away.",
    },
    "defaults": {
        "$ref": "#/$defs/MethodConfigPart",
        "description": "What holds for every method that is named in `methods`.",
    },
    "matrix": {
        "$ref": "#/$defs/Matrix",
        "description": "Makes a package of every combination of the values of its axes.",
    },
    "package": {
        "description": "How the packages of a matrix are named, such as asr-${matrix.target}; by "
        "default <file>-<value>-<value>.",
        "type": "string",
    },
}
_VALUE = {"type": ["string", "number", "boolean"]}
_PART = {"$ref": "#/$defs/PackageConfigPart"}


def _combinations(description: str, more: dict[str, Any]) -> dict[str, Any]:
    item = {
        "additionalProperties": False,
        "patternProperties": {AXIS_PATTERN: _VALUE},
        "properties": more,
        "type": "object",
    }
    return {"description": description, "items": item, "type": "array"}


_MATRIX = {
    "additionalProperties": False,
    "description": "Axes. One is a list of values, for ${matrix.axis}, or a mapping of names to "
    "parts of a config, which are merged over the rest of the file.",
    "minProperties": 1,
    "patternProperties": {
        AXIS_PATTERN: {
            "anyOf": [
                {"items": _VALUE, "minItems": 1, "type": "array"},
                {
                    "additionalProperties": False,
                    "minProperties": 1,
                    "patternProperties": {".": _PART},
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
            {"config": {**_PART, "description": "Merged over the rest in these packages."}},
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
        return {"anyOf": [inside, {"$ref": "#/$defs/Variable"}], **outside}
    return {
        key: each
        if key in ("required", "default")
        else {name: _with_variables(part) for name, part in each.items()}
        if key in ("properties", "patternProperties")
        else _with_variables(each)
        for key, each in schema.items()
    }


def _parts(definitions: dict[str, Any]) -> dict[str, Any]:
    """Definitions of parts of what the definitions define, reachable from a package's: nothing is
    required, and an empty value takes away. Lists are written as a whole, and so is what is in
    them."""
    made: dict[str, Any] = {}

    def part(schema: Any) -> Any:
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            if name == "Variable":
                return schema
            if name not in made:
                made[name] = {}
                made[name] = part(definitions[name])
            return {**schema, "$ref": f"#/$defs/{_part_of(name)}"}
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
        return schema["$ref"].rpartition("/")[2].removesuffix("Part")

    part({"$ref": f"#/$defs/{PackageConfig.__name__}"})
    return {_part_of(name): {**each, "title": _part_of(name)} for name, each in made.items()}


def _part_of(name: str) -> str:
    return f"{name}Part"


def _backend_models() -> Iterator[type[Options]]:
    for backend in BACKENDS.values():
        yield backend.options
    for quantizer in QUANTIZERS.values():
        yield quantizer.options


def _partitioner() -> dict[str, Any]:
    """A backend's name, or one key with its options."""
    options = {name: _reference(backend.options) for name, backend in BACKENDS.items()}
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


def _name_overrides(definitions: dict[str, Any]) -> None:
    """Gives what overrides a quantizer's options a name, and closes the mappings of them."""
    for quantizer in QUANTIZERS.values():
        if issubclass(quantizer.options, MixedQuantize):
            scheme, reference = quantizer.options.scheme, {"const": NOT}
            if scheme.model_fields:
                either = {"anyOf": [_reference(scheme), {"const": NOT}]}
                definitions[f"{scheme.__name__}Override"] = either
                reference = {"$ref": f"#/$defs/{scheme.__name__}Override"}
            of = definitions[quantizer.options.__name__]["properties"]
            names = of["operators"].pop("propertyNames")
            operators = names.get("enum") or [names["const"]]
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


def _quantizer() -> dict[str, Any]:
    return {"anyOf": [_reference(quantizer.options) for quantizer in QUANTIZERS.values()]}


def _reference(model: type[Options]) -> dict[str, str]:
    return {"$ref": f"#/$defs/{model.__name__}"}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
