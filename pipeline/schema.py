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
from pipeline.backends.entry import MODULE_PATTERN, NOT, MixedQuantize
from pipeline.config import MethodConfig, PackageConfig

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
    """A schema of draft 2020-12; the order of its keys is fixed."""
    models: list[type[BaseModel]] = [PackageConfig, *_backend_models()]
    _, schema = models_json_schema(
        [(model, "validation") for model in models], schema_generator=_Generator
    )
    definitions = schema["$defs"]
    package = definitions.pop(PackageConfig.__name__)
    del package["properties"]["package"]
    package["required"].remove("package")
    for backend in BACKENDS.values():  # `modules` is an option of every partitioner
        own = definitions[backend.options.__name__].setdefault("properties", {})
        own["modules"] = definitions[PartitionerSpec.__name__]["properties"]["modules"]
    definitions[PartitionerSpec.__name__] = _partitioner()
    definitions[QuantizeConfig.__name__] = _quantizer()
    _name_overrides(definitions)
    _add_recipes(definitions[MethodConfig.__name__])
    del definitions[Options.__name__]
    for methods in (package["properties"]["methods"], package["properties"]["constant_methods"]):
        methods["additionalProperties"] = False
    return {"$schema": DIALECT, **package, "$defs": dict(sorted(definitions.items()))}


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


def _name_overrides(definitions: dict[str, Any]) -> None:
    """Gives what overrides a quantizer's options a name, and closes the mappings of them."""
    for quantizer in QUANTIZERS.values():
        if issubclass(quantizer.options, MixedQuantize):
            scheme = quantizer.options.scheme.__name__
            definitions[f"{scheme}Override"] = {
                "anyOf": [{"$ref": f"#/$defs/{scheme}"}, {"const": NOT}]
            }
            reference = {"$ref": f"#/$defs/{scheme}Override"}
            of = definitions[quantizer.options.__name__]["properties"]
            operators = of["operators"].pop("propertyNames")["enum"]
            of["operators"]["properties"] = dict.fromkeys(operators, reference)
            of["modules"]["patternProperties"] = {MODULE_PATTERN: reference}
            for kind in ("modules", "operators"):
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
