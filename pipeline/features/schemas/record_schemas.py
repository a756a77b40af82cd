"""The JSON Schemas of `report.json`, of lines of `events.jsonl`, and of verbs' `--json` output.

`python -m pte_pipeline.report.schema [report | events | VERB]` prints one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import TypedDict, is_typeddict

from pipeline.cli.commands import VERBS
from pipeline.features.schemas.event_table import EVENTS, LINE, MEANINGS
from pipeline.features.schemas.outlines import outline_schema
from pipeline.moments import Command, load
from pipeline.report.records import make_report_outline
from pipeline.store.errors import did_you_mean
from pipeline.store.forms import Count, Ordinal, Seconds, Size

_LIMITS = {
    Count: Field(ge=0),
    Ordinal: Field(ge=1),
    Size: Field(ge=0),
    Seconds: Field(ge=0),
}
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _Generator(GenerateJsonSchema):
    """Leaves out titles that repeat keys, and puts descriptions on one line."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
        shape = super().typed_dict_schema(schema)
        return shape | {"description": " ".join(shape["description"].split())}


def report_schema() -> dict[str, Any]:
    """Return a schema of draft 2020-12; the order of its keys is fixed."""
    return _outline_schema(
        make_report_outline(), description="The record of a validated package."
    )


def events_schema() -> dict[str, Any]:
    """Return the schema of a line of the event stream.

    Its forms are named after the events: `RunEnded` for `run-ended`.
    """
    definitions: dict[str, Any] = {}
    places: dict[str, str] = {}
    for event, fields in EVENTS.items():
        line = {"event": Literal[event], **LINE, **fields}
        name = event.title().replace("-", "")
        definitions[name] = _describe((line, MEANINGS[event]), definitions)
        places[event] = f"#/$defs/{name}"
    return {
        "$schema": DIALECT,
        "$defs": dict(sorted(definitions.items())),
        "discriminator": {"mapping": places, "propertyName": "event"},
        "oneOf": [{"$ref": place} for place in places.values()],
    }


def verb_schema(verb: Command) -> dict[str, Any]:
    """Return the schema of the `--json` output of a verb that has a record."""
    title = f"doit {verb.name} --json"
    return _outline_schema(load(verb.record), title=title, description=verb.summary)


def _outline_schema(outline: Any, **words: str) -> dict[str, Any]:
    """Return the schema of an outline, with the definitions of all its forms at its top."""
    definitions: dict[str, Any] = {}
    schema = _describe(outline, definitions)
    more = {"$defs": dict(sorted(definitions.items()))} if definitions else {}
    return {"$schema": DIALECT, **words, **more, **schema}


def _describe(outline: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an outline, and add the definitions that it refers to."""

    def schema_of_form(form: Any) -> dict[str, Any]:
        adapter: TypeAdapter[Any] = TypeAdapter(_for_pydantic(form))
        schema = adapter.json_schema(schema_generator=_Generator)
        definitions.update(schema.pop("$defs", {}))
        return schema

    return outline_schema(outline, schema_of_form)


@cache
def _for_pydantic(form: Any) -> Any:
    """Return a form in which all records are TypedDicts of typing_extensions.

    pydantic requires these before Python 3.12. The store's own records don't use them, because a
    no-op run imports those records and must not import typing_extensions.
    """
    if is_typeddict(form) or is_dataclass(form):
        hints = get_type_hints(form, include_extras=True)
        fields = {name: _for_pydantic(hint) for name, hint in hints.items()}
        converted: Any = TypedDict(form.__name__, fields)  # type: ignore[misc, operator]
        converted.__doc__ = form.__doc__
        return converted
    if form in _LIMITS:
        return Annotated[get_args(form)[0], _LIMITS[form]]
    origin = get_origin(form)
    parts = get_args(form)
    if origin is None or origin is Literal:
        return form
    if origin is UnionType:
        origin = Union
    converted_parts = tuple(map(_for_pydantic, parts))
    return origin[converted_parts if len(parts) > 1 else converted_parts[0]]


def find_schemas() -> dict[str, Callable[[], dict[str, Any]]]:
    """Return the function that makes each schema, by its file name without `.schema.json`."""
    schemas = {"report": report_schema, "events": events_schema}
    for verb in VERBS.values():
        if verb.record:
            schemas[verb.name] = partial(verb_schema, verb)
    return schemas


def main(words: list[str]) -> int:
    """Print the schema that a command line asks for; return the exit status."""
    schemas = find_schemas()
    name = words[0] if words else "report"
    if name not in schemas:
        print(f"no schema '{name}'; {did_you_mean(name, schemas)}", file=sys.stderr)
        return 2
    print(json.dumps(schemas[name](), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
