"""The JSON Schemas of `report.json` and of lines of `events.jsonl`.

`python -m pipeline.report.schema [report | events]` prints one.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from pipeline.report.records import ReportRecord
from pipeline.report.stream_records import StreamLine

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
    return _schema_of(ReportRecord)


def events_schema() -> dict[str, Any]:
    """Return the schema of a line of the event stream."""
    return _schema_of(StreamLine)


def _schema_of(form: Any) -> dict[str, Any]:
    schema = TypeAdapter(form).json_schema(schema_generator=_Generator)
    return {"$schema": DIALECT, **schema}


_SCHEMAS = {"report": report_schema, "events": events_schema}

if __name__ == "__main__":
    which = sys.argv[1] if len(sys.argv) > 1 else "report"
    print(json.dumps(_SCHEMAS[which](), indent=2))
