"""The JSON that commands print with `--json`: a table of fields per command, and the schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.cli.commands import VERBS
from pipeline.features.catalogue.value_kinds import describe_list, describe_values
from pipeline.features.schemas.record_schemas import find_schemas, verb_schema
from tools.reference.markdown import row


def json_output() -> Iterator[str]:
    """Yield a section for each command that supports `--json`."""
    for verb in VERBS.values():
        if not verb.record:
            continue
        name = verb.name
        schema = verb_schema(verb)
        yield from [
            f"## `{schema['title']}`",
            "",
            f"[{name}.schema.json]({name}.schema.json)",
            "",
            "| field | value | meaning |",
            "|---|---|---|",
        ]
        for path, part in _fields(schema, ""):
            yield row(f"`{path}`", _kind(part), part.get("description", ""))
        yield ""


def make_schema_files() -> dict[str, str]:
    """Return the text of each schema, keyed by file name."""
    return {
        f"{name}.schema.json": json.dumps(make(), indent=2) + "\n"
        for name, make in find_schemas().items()
    }


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the fields of a record, and of the records in it, with their paths."""
    for name, part in schema.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield place, part
        for branch in (part, *part.get("anyOf", ())):
            yield from _inner_fields(branch, place)


def _inner_fields(part: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if part.get("type") == "array":
        yield from _inner_fields(part["items"], f"{path}[]")
    elif isinstance(part.get("additionalProperties"), dict):
        yield from _inner_fields(part["additionalProperties"], f"{path}.*")
    else:
        yield from _fields(part, path)


def _kind(part: Mapping[str, Any]) -> str:
    if "anyOf" in part:
        kinds = [_kind(branch) for branch in part["anyOf"]]
        return " or ".join(dict.fromkeys(kinds))
    if part.get("type") == "null":
        return "null"
    if part.get("type") == "array":
        return describe_list(_kind(part["items"]))
    if part.get("type") == "object":
        return "record" if "properties" in part else "mapping"
    return describe_values(part, {})
