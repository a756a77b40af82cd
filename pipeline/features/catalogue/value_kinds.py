"""Describes the values that an option takes, from its part of a JSON schema.

`doit backends` and the config reference use the descriptions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.backends.quantize_options import NOT

_COUNTABLE = ("string", "number", "whole number", "mapping", "record", "list")


def definition_of(
    part: Mapping[str, Any], definitions: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the definition that a part of a schema refers to."""
    return definitions[part["$ref"].rpartition("/")[2]]


def describe_values(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    """Describe the values of an option in YAML's terms."""
    if "$ref" in part:
        return describe_values(definition_of(part, definitions), definitions)
    if branches := part.get("anyOf", part.get("oneOf")):
        kinds = [
            describe_values(branch, definitions)
            for branch in branches
            if branch.get("type") != "null"
        ]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in part:
        return " | ".join(map(format_yaml, part["enum"]))
    if "const" in part:
        return format_yaml(part["const"])
    kind = part.get("type")
    if kind == "array" and "prefixItems" in part:
        items = [describe_values(branch, definitions) for branch in part["prefixItems"]]
        kinds = [*dict.fromkeys(items)]
        if len(kinds) == 1:
            return f"list of {len(items)} {_put_in_plural(kinds[0])}"
        return f"list of {len(items)}: {', '.join(kinds)}"
    if kind == "array":
        return describe_list(describe_values(part.get("items", {}), definitions))
    if kind == "object":
        return _describe_mapping(part, definitions)
    names = {"boolean": "true | false", "integer": "whole number", "string": "string"}
    name = names.get(str(kind), str(kind or "any value"))
    if "exclusiveMinimum" in part:
        return f"{name} above {part['exclusiveMinimum']}"
    if "minimum" not in part:
        return name
    least = part["minimum"]
    greatest = part.get("maximum")
    if greatest is None:
        return f"{name} from {least}"
    return f"{name} {least}..{greatest}"


def describe_list(member: str) -> str:
    """Describe a list of such members."""
    return f"list of {_put_in_plural(member)}"


def _put_in_plural(kind: str) -> str:
    """Put the noun at the beginning of a description in the plural."""
    noun = next((n for n in _COUNTABLE if f"{kind} ".startswith(f"{n} ")), "")
    return f"{noun}s{kind.removeprefix(noun)}" if noun else kind


def _describe_mapping(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    keys = part.get("propertyNames", {})
    members = [
        *part.get("patternProperties", {}).values(),
        part.get("additionalProperties"),
    ]
    inner = next((member for member in members if isinstance(member, Mapping)), None)
    if inner is None:
        return "mapping"
    of = "names"
    if "enum" in keys:
        of = describe_values(keys, definitions)
    if "$ref" in inner:
        inner = definition_of(inner, definitions)
    choices = [member.get("const") for member in inner.get("oneOf", ())]
    if NOT in choices:
        to = f"options or {NOT}"
    else:
        to = describe_values(inner, definitions)
    return f"mapping of {of} to {to}"


def format_yaml(value: Any) -> str:
    """Format a value in YAML, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_yaml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
