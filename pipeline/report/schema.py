"""The JSON Schema of `report.json`, from the shapes in `pipeline.report.records`."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from pipeline.report.records import ReportRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """No title repeats a key, and none of the lines of a docstring stands in the output."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def report_schema() -> dict[str, Any]:
    """A schema of draft 2020-12; the order of its keys is fixed."""
    schema = TypeAdapter(ReportRecord).json_schema(schema_generator=_Generator)
    return {"$schema": DIALECT, **_unwrapped(schema)}


def _unwrapped(schema: Any) -> Any:
    """Descriptions on one line, as docstrings are broken where they stand in code."""
    if isinstance(schema, list):
        return [_unwrapped(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: " ".join(each.split())
        if key == "description" and isinstance(each, str)
        else _unwrapped(each)
        for key, each in schema.items()
    }
