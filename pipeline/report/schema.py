"""The JSON Schema of `report.json`. `python -m pipeline.report.schema` prints it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from pipeline.report.records import ReportRecord

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Leaves out titles that repeat keys, and puts descriptions on one line."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        made = super().typed_dict_schema(schema)
        return made | {"description": " ".join(made["description"].split())}


def report_schema() -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed."""
    schema = TypeAdapter(ReportRecord).json_schema(schema_generator=_Generator)
    return {"$schema": DIALECT, **schema}


if __name__ == "__main__":
    print(json.dumps(report_schema(), indent=2))
