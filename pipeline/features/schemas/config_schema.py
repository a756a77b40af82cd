"""The JSON Schema of package configs, for editors.

It is made from the models that parse a config and from the backend catalogue, so it agrees with
them. The parser and the plan check what no schema can know, such as the methods of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic.json_schema import JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from pipeline.backends import (
    BACKENDS,
    QUANTIZERS,
    RECIPES,
    Options,
    PartitionerSpec,
    QuantizeConfig,
)
from pipeline.backends.options import add_descriptions
from pipeline.config.edge import FACTORY, PassSpec
from pipeline.config.fields import REFERENCE_PATTERN
from pipeline.config.models import OMIT, MethodConfig, PackageConfig
from pipeline.config.reader import partitioner_options
from pipeline.config.variables import AXIS_PATTERN
from pipeline.features.schemas.schema_generator import DIALECT, MEMBERS, SchemaGenerator

# Definitions that come from no model. Their names end in a dot, which no model's name contains.
_DEFINITIONS = rf"""
Root.:
  $schema: {DIALECT}
  $ref: "#/$defs/File."
  if:
    required: [model]
    not: {{anyOf: [required: [extends], required: [defaults], required: [matrix]]}}
  then: {{$ref: "#/$defs/Whole."}}
Variable.:
  description: 'A variable of the environment or of the matrix: ${{NAME}}, ${{NAME:-default}},
    ${{matrix.axis}}.'
  type: string
  pattern: \$\{{
Unset.:
  description: A variable, or an empty value, which removes the value from another file.
  type: [string, "null"]
  pattern: \$\{{
Given.:
  description: Any value whose mappings contain no empty value.
  type: [array, boolean, number, object, string]
  additionalProperties: {{$ref: "#/$defs/Given."}}
Whole.:
  $ref: "#/$defs/Given."
  properties:
    package: false
    methods:
      minProperties: 1
      additionalProperties:
        if: {{const: omit}}
        else:
          oneOf:
            - required: [partitioners]
            - required: [recipe]
              properties: {{quantize: false}}
          properties:
            quantize: {{$ref: "#/$defs/Quantizer."}}
Matrix.:
  title: Matrix
  description: The axes of the matrix. An axis is a list of values for ${{matrix.axis}}, or a
    mapping of names to partial configs, which are merged over the rest of the file.
  type: object
  minProperties: 1
  additionalProperties: false
  patternProperties:
    '{AXIS_PATTERN}':
      anyOf:
        - {{type: array, items: {{type: [string, number, boolean]}}, minItems: 1}}
        - type: object
          patternProperties: {{.: {{$ref: "#/$defs/Package."}}}}
          minProperties: 1
          additionalProperties: false
        - type: "null"
File.:
  title: File
  description: A config file. It describes packages, or is a part that other files extend.
  type: object
  minProperties: 1
  additionalProperties: false
  properties:
    extends:
      description: The configs that this one extends, by name, without .yaml; later configs override
        earlier ones. Mappings are merged, other values are replaced, and an empty value removes an
        inherited key.
      anyOf: [{{type: string}}, {{type: array, items: {{type: string}}, minItems: 1}}]
    defaults:
      description: Settings for every method in `methods`; a method's own settings override them.
      $ref: "#/$defs/Method."
    matrix:
      description: Axes with their values; each combination of values makes a package.
      $ref: "#/$defs/Matrix."
    package:
      description: The name of each package that the matrix makes, such as asr-${{matrix.size}};
        by default, the config file's name and one value per axis, such as asr-small-int8.
      type: string
"""


class ConfigSchemaGenerator(SchemaGenerator):
    """Describes a model in the form that `pipeline.config.reader` reads."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        model = schema["cls"]
        if model is QuantizeConfig:
            return {
                "anyOf": [
                    self._model(quantizer.options) for quantizer in QUANTIZERS.values()
                ]
            }
        if model is PassSpec:
            name: JsonSchemaValue = {"type": "string", "pattern": REFERENCE_PATTERN}
            # The pass knows its own options.
            options: Any = {REFERENCE_PATTERN: {"type": ["object"]}}
            generated = _name_or_mapping(name, "patternProperties", options)
            words = {
                "description": "A function that returns a pass or a list of passes."
            }
            factory = {
                FACTORY: {
                    **words,
                    **_name_or_mapping(name, "patternProperties", options),
                }
            }
            generated["anyOf"][1]["properties"] = factory
            return generated
        if model is PartitionerSpec:
            options = {
                name: self._model(partitioner_options(name)) for name in BACKENDS
            }
            return _name_or_mapping({"enum": list(BACKENDS)}, "properties", options)
        generated = super().model_schema(schema)
        if model.shorthand:
            add_descriptions(model, generated["properties"])
            name = generated["properties"][model.shorthand]
            return {
                "anyOf": [
                    {k: v for k, v in name.items() if k != "description"},
                    generated,
                ]
            }
        if model is PackageConfig:  # its name comes from the file
            del generated["properties"]["package"], generated["properties"]["omitted"]
            generated["required"].remove("package")
            methods = generated["properties"]["methods"]["patternProperties"]
            for name, method in methods.items():
                methods[name] = {"anyOf": [method, {"const": OMIT}]}
        if model is MethodConfig:
            generated["properties"]["recipe"] = {
                "enum": [
                    name for name, recipe in RECIPES.items() if "refused" not in recipe
                ],
                "description": "The ExecuTorch recipe that replaces `quantize` and `partitioners`.",
            }
        return generated

    def _model(self, model: Any) -> JsonSchemaValue:
        return self.generate_inner(model.__pydantic_core_schema__)


def _name_or_mapping(name: JsonSchemaValue, kind: str, options: Any) -> JsonSchemaValue:
    """Return the schema of a name, or of a mapping from one name to its options."""
    single = {"additionalProperties": False, "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [name, {"type": "object", kind: options, **single}]}


def json_schema() -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed.

    A file that names its model, and has none of the keys that combine files, must be complete. Any
    other file, such as one that others extend, is checked only for what it contains.
    """
    models: list[type[Options]] = [PackageConfig, MethodConfig]
    models += (quantizer.options for quantizer in QUANTIZERS.values())
    # Not keyed by the models' names: if a plugin's model and one of ours have the same name,
    # pydantic adds their modules to both names.
    references_by_mode, schema = models_json_schema(
        [(model, "validation") for model in models],
        schema_generator=ConfigSchemaGenerator,
    )
    references = {
        model: reference for (model, _), reference in references_by_mode.items()
    }
    definitions = schema["$defs"]
    # The options of any partitioner: each partitioner has a separate definition.
    definitions.pop("Options", None)
    required: dict[Any, Any] = {}  # by model
    for model, reference in references.items():
        required[model] = definitions[_name_in(reference)].get("required")
    partial = set(_mergeable(references[PackageConfig], definitions))
    for name, definition in definitions.items():
        definitions[name] = _relaxed(definition, name in partial)
    definitions |= yaml.safe_load(_DEFINITIONS)
    definitions["Package."] = references[PackageConfig]
    definitions["Method."] = references[MethodConfig]
    definitions["Whole."]["required"] = required[PackageConfig]
    quantizers = []
    for name, quantizer in QUANTIZERS.items():
        properties = {"quantizer": {"const": name}}
        quantizers.append(
            {"properties": properties, "required": required[quantizer.options]}
        )
    definitions["Quantizer."] = {"anyOf": quantizers}
    package = definitions[_name_in(references[PackageConfig])]["properties"]
    keys = definitions["File."]["properties"]
    definitions["File."]["properties"] = {**package, **keys}
    package["defaults"] = keys["defaults"]
    return {**definitions.pop("Root."), "$defs": dict(sorted(definitions.items()))}


def _mergeable(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[str]:
    """Yield the definitions of mappings that files merge.

    Definitions inside lists are left out, because lists are replaced as a whole.
    """
    if "$ref" in schema:
        yield _name_in(schema)
        yield from _mergeable(definitions[_name_in(schema)], definitions)
    parts = [*schema.get("anyOf", ())]
    for key in MEMBERS:
        parts += schema.get(key, {}).values()
    for part in parts:
        yield from _mergeable(part, definitions)


def _relaxed(schema: dict[str, Any], partial: bool) -> dict[str, Any]:
    """Return a schema that accepts a variable in place of any value that can't be arbitrary text.

    Args:
        partial: whether the schema is for part of a mapping: nothing is required, and an empty
            value removes a key. Lists, and everything in them, are written as a whole.
    """
    if "$ref" in schema or "const" in schema:
        return schema
    if "anyOf" in schema:
        branches = [_relaxed(branch, partial) for branch in schema["anyOf"]]
        return {**schema, "anyOf": branches}
    kind = schema.get("type")
    if (
        kind in ("boolean", "integer", "number")
        or "enum" in schema
        or "pattern" in schema
    ):
        outside: dict[str, Any] = {}
        for key in ("description", "default"):
            if key in schema:
                outside[key] = schema[key]
        inside = {key: member for key, member in schema.items() if key not in outside}
        alternative = "Variable."
        if partial:
            alternative = "Unset."
        return {"anyOf": [inside, {"$ref": f"#/$defs/{alternative}"}], **outside}
    dropped: tuple[str, ...] = ()
    if partial:
        dropped = ("required", "minProperties")
    result = {key: member for key, member in schema.items() if key not in dropped}
    if "items" in schema:
        result["items"] = _relaxed(schema["items"], False)
    for key in MEMBERS:
        if key in schema:
            members = schema[key].items()
            result[key] = {name: _relaxed(member, partial) for name, member in members}
    if partial and isinstance(kind, str):
        result["type"] = [kind, "null"]
    return result


def _name_in(reference: JsonSchemaValue) -> str:
    return str(reference["$ref"]).rpartition("/")[2]
