"""The event stream of a workspace, with each line checked against the documented schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from pipeline.features.schemas.record_schemas import events_schema
from pipeline.report.stream import STREAM


@cache
def _validator() -> jsonschema.Draft202012Validator:
    """Return a validator that rejects fields missing from the schema."""
    schema = events_schema()
    for event in schema["discriminator"]["mapping"].values():
        form = schema["$defs"][event.rpartition("/")[2]]
        _close(form)
        for part in form["properties"].values():
            for alternative in (part, *part.get("anyOf", ())):
                _close(alternative)
    return jsonschema.Draft202012Validator(schema)


def _close(schema: dict[str, Any]) -> None:
    if "properties" in schema:
        schema["additionalProperties"] = False


def read_events(build: Path) -> list[dict[str, Any]]:
    """Return the events of a `build/` folder; each one must be valid."""
    text = (build / STREAM).read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        _validator().validate(line)
    return lines
