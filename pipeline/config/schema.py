"""The JSON Schema of package configs, for editors: `python -m pipeline.config.schema`.

Made from the models that parse a config and from the backend catalogue, so it agrees with them. The
parser and the plan check what no schema can know, such as the methods of the model.
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
from pipeline.config.fields import REFERENCE_PATTERN
from pipeline.config.load import EmitConfig, MethodConfig, PackageConfig, PassSpec, ValidateConfig
from pipeline.config.matrix import AXIS_PATTERN

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Describes YAML: a key is left out, never empty, and no title repeats a key."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), bool | int | float | str):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed.

    A file that names its model and has none of the keys by which files are put together must be
    complete; any other file, such as one that others extend, is checked only for what is in it.
    """
    definitions, names = _definitions()
    keys = _keys(names)
    whole = _whole(definitions, names)
    partial = set(_mergeable(_reference(names[PackageConfig]), definitions))
    definitions = {n: _relaxed(part, n in partial) for n, part in definitions.items()}
    package = definitions[names[PackageConfig]]
    package["properties"]["defaults"] = keys["defaults"]
    definitions[_FILE] = {
        **package,
        "description": "A file that says its packages, or a part of them.",
        "properties": {**package["properties"], **keys},
        "minProperties": 1,
        "title": "File",
        "type": "object",
    }
    definitions |= {_MATRIX: _matrix(names), _VARIABLE: _VARIABLES, _UNSET: _NO_VALUE}
    definitions |= {_WHOLE: whole, _GIVEN: _NO_EMPTY_VALUE}
    together = [{"required": [name]} for name in _PUT_TOGETHER]
    return {
        "$schema": DIALECT,
        **_reference(_FILE),
        "if": {"required": ["model"], "not": {"anyOf": together}},
        "then": _reference(_WHOLE),
        "$defs": dict(sorted(definitions.items())),
    }


_Names = dict[Any, str]  # of models' definitions
# Names of definitions that are no model's. None of a model's holds a point.
_FILE, _WHOLE, _MATRIX = "File.", "Whole.", "Matrix."
_VARIABLE, _UNSET, _GIVEN = "Variable.", "Unset.", "Given."
_PUT_TOGETHER = ("extends", "defaults", "matrix")
_VARIABLES = {
    "description": "A variable of the environment or of the matrix: ${NAME}, ${NAME:-default}, "
    "${matrix.axis}.",
    "pattern": r"\$\{",
    "type": "string",
}
_NO_VALUE = {
    "description": "A variable, or an empty value, which takes away what another file says.",
    "pattern": r"\$\{",
    "type": ["string", "null"],
}
_NO_EMPTY_VALUE = {
    "description": "Any value, with no empty one in its mappings.",
    "type": ["array", "boolean", "number", "object", "string"],
    "additionalProperties": {"$ref": f"#/$defs/{_GIVEN}"},
}
_REQUIREMENTS = ("required", "minProperties")
_MEMBERS = ("properties", "patternProperties")


def _definitions() -> tuple[dict[str, Any], _Names]:
    """Return the definitions of all models as they are written in YAML, and the models' names."""
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
    definitions[names[QuantizeConfig]] = {
        "anyOf": [_reference(names[each.options]) for each in QUANTIZERS.values()]
    }
    definitions[names[PassSpec]] = _pass()
    _name_overrides(definitions, names)
    recipes = [name for name, recipe in RECIPES.items() if "refused" not in recipe]
    definitions[names[MethodConfig]]["properties"]["recipe"] = {
        "enum": recipes,
        "description": "A recipe of ExecuTorch's, instead of `quantize` and `partitioners`.",
    }
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
    return definitions, names


def _keys(names: _Names) -> dict[str, dict[str, Any]]:
    """Return the schemas of the keys by which files are put together."""
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
            **_reference(names[MethodConfig]),
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


def _matrix(names: _Names) -> dict[str, Any]:
    part = _reference(names[PackageConfig])
    combination = {
        "additionalProperties": False,
        "patternProperties": {AXIS_PATTERN: _VALUE},
        "type": "object",
    }
    more = {"config": {**part, "description": "Merged over the rest in these packages."}}
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
            "exclude": {
                "description": "Combinations that are left out; an axis that is not named may "
                "have any value.",
                "items": combination,
                "type": "array",
            },
            "include": {
                "description": "More combinations, or ones to whose `config` more is added.",
                "items": {**combination, "properties": more},
                "type": "array",
            },
        },
        "title": "Matrix",
        "type": "object",
    }


def _mergeable(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """Yield the definitions of mappings that files merge, but for what is in lists, which are
    replaced as a whole."""
    if "$ref" in schema:
        yield _name_in(schema)
        yield from _mergeable(definitions[_name_in(schema)], definitions)
    members = [each for key in _MEMBERS for each in schema.get(key, {}).values()]
    for each in (*members, *schema.get("anyOf", ())):
        yield from _mergeable(each, definitions)


def _whole(definitions: dict[str, Any], names: _Names) -> dict[str, Any]:
    """Return what a file must hold that says all of its package."""
    quantizers = [
        {
            "properties": {"quantizer": {"const": name}},
            "required": definitions[names[each.options]]["required"],
        }
        for name, each in QUANTIZERS.items()
    ]
    method = {
        "oneOf": [
            {"required": ["partitioners"]},
            {"required": ["recipe"], "properties": {"quantize": False}},
        ],
        "properties": {"quantize": {"anyOf": quantizers}},
    }
    return {
        **_reference(_GIVEN),
        "properties": {
            "methods": {"additionalProperties": method, "minProperties": 1},
            "package": False,
        },
        "required": definitions[names[PackageConfig]]["required"],
    }


def _relaxed(schema: dict[str, Any], partial: bool) -> dict[str, Any]:
    """Return a schema that takes a variable in place of any value that not every text could be.

    Args:
        partial: whether it is of a part of a mapping: nothing is required, and an empty value
            takes away. Lists are written as a whole, and so is what is in them.
    """
    if "$ref" in schema or "const" in schema:
        return schema
    if "anyOf" in schema:
        return {**schema, "anyOf": [_relaxed(each, partial) for each in schema["anyOf"]]}
    kind = schema.get("type")
    if kind in ("boolean", "integer", "number") or "enum" in schema or "pattern" in schema:
        outside: dict[str, Any] = {k: schema[k] for k in ("description", "default") if k in schema}
        inside = {key: each for key, each in schema.items() if key not in outside}
        other = _reference(_UNSET if partial else _VARIABLE)
        return {"anyOf": [inside, other], **outside}
    result = {k: each for k, each in schema.items() if not (partial and k in _REQUIREMENTS)}
    if "items" in schema:
        result["items"] = _relaxed(schema["items"], False)
    for key in _MEMBERS:
        if key in schema:
            result[key] = {name: _relaxed(each, partial) for name, each in schema[key].items()}
    if partial and isinstance(kind, str):
        result["type"] = [kind, "null"]
    return result


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _name_in(reference: JsonSchemaValue) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _models() -> Iterator[type[BaseModel]]:
    """Yield the models that need definitions; a package's holds further ones."""
    yield from (PackageConfig, MethodConfig, PartitionerSpec, QuantizeConfig, PassSpec)
    yield from (EmitConfig, ValidateConfig, Options)
    for backend in BACKENDS.values():
        yield backend.options
    for quantizer in QUANTIZERS.values():
        yield quantizer.options
        if issubclass(quantizer.options, MixedQuantize) and quantizer.options.scheme.model_fields:
            yield quantizer.options.scheme


def _partitioner(names: _Names) -> dict[str, Any]:
    """Return the schema of a backend's name, or of one key with its options."""
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
    """Return the schema of a reference, or of one key with the pass's own options."""
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
    """Name what overrides a quantizer's options, and close the mappings of overrides."""
    for quantizer in QUANTIZERS.values():
        if issubclass(quantizer.options, MixedQuantize):
            scheme, reference = quantizer.options.scheme, {"const": NOT}
            if scheme.model_fields:
                override = f"{names[scheme]}.Override"
                definitions[override] = {"anyOf": [_reference(names[scheme]), {"const": NOT}]}
                reference = _reference(override)
            properties = definitions[names[quantizer.options]]["properties"]
            allowed = properties["operators"].pop("propertyNames")
            operators = allowed.get("enum") or [allowed["const"]]
            properties["operators"]["properties"] = dict.fromkeys(operators, reference)
            properties["modules"]["patternProperties"] = {MODULE_PATTERN: reference}
            for kind in OVERRIDES:
                properties[kind]["additionalProperties"] = False


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
