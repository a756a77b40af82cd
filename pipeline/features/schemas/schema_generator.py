"""Makes JSON Schemas for editors from pydantic models; they describe what people write in YAML."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MEMBERS = ("properties", "patternProperties")


class SchemaGenerator(GenerateJsonSchema):
    """Describes what people write in YAML: keys are left out rather than empty.

    Titles that repeat keys are left out.
    """

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), bool | int | float | str):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tagged_union_schema(
        self, schema: core_schema.TaggedUnionSchema
    ) -> JsonSchemaValue:
        return {"anyOf": super().tagged_union_schema(schema)["oneOf"]}

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        """Close a mapping whose keys are known, or match a pattern."""
        generated = super().dict_schema(schema)
        names = generated.pop("propertyNames", None)
        if names:
            keys = names.get("enum") or [names["const"]]
            generated["properties"] = dict.fromkeys(
                keys, generated["additionalProperties"]
            )
        closed = any(key in generated for key in MEMBERS)
        if closed:
            return {**generated, "additionalProperties": False}
        return generated
