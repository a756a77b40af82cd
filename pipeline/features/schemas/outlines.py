"""Makes JSON Schemas from outlines, which have the form that `store.forms.check_of` expects.

Outlines describe reports, and what verbs print with `--json` (`moments.Command.record`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]


def outline_schema(outline: Any, schema_of_form: Callable[[Any], Schema]) -> Schema:
    """Return the JSON Schema of an outline, with its texts as descriptions.

    Args:
        schema_of_form: returns the schema of a form, as `store.forms.fits` takes it.
    """
    if isinstance(outline, tuple):
        return _describe_alternatives(outline, schema_of_form)
    if isinstance(outline, list):
        (item,) = outline
        return {"type": "array", "items": outline_schema(item, schema_of_form)}
    if not isinstance(outline, dict):
        return schema_of_form(outline)
    parts = {
        name: outline_schema(part, schema_of_form) for name, part in outline.items()
    }
    if not all(isinstance(name, str) for name in outline):
        ((_, values),) = parts.items()
        return {"type": "object", "additionalProperties": values}
    return {
        "type": "object",
        "properties": {name.removesuffix("?"): part for name, part in parts.items()},
        "required": [name for name in parts if not name.endswith("?")],
    }


def _describe_alternatives(
    outline: tuple[Any, ...], schema_of_form: Callable[[Any], Schema]
) -> Schema:
    texts = [part for part in outline if isinstance(part, str)]
    schemas = []
    for part in outline:
        if part is None:
            schemas.append({"type": "null"})
        elif not isinstance(part, str):
            schemas.append(outline_schema(part, schema_of_form))
    (schema,) = schemas if len(schemas) == 1 else [{"anyOf": schemas}]
    if texts:
        return {**schema, "description": " ".join(" ".join(texts).split())}
    return schema
