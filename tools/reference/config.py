"""The keys of package configs, and the options of partitioners and quantizers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.backends import BACKENDS, QUANTIZERS, RECIPES, Options
from pipeline.backends.families import find_files
from pipeline.config.models import PackageConfig
from pipeline.features.catalogue.value_kinds import definition_of, describe_values, format_yaml
from pipeline.features.schemas.config_schema import json_schema
from tools.reference.markdown import plain, row

Json = Mapping[str, Any]
OPTION_EXAMPLES = Path(__file__).with_name("option_examples.yaml")
_UNWRITTEN = ("package", "omitted")  # fields that no file sets
# Described together with their options.
_APART = {
    "PartitionerSpec": "options.md",
    "QuantizeConfig": "options.md",
    "PassSpec": "../guides/configs.md#edge-and-emit",
}
_ALGORITHM = "greedy | greedy_without_overlap | naive"
_CONSTANT = "true | false or number or string"
_CLEARER = {  # kinds of values in the schema's words, and in ours
    f"{_ALGORITHM} or string or list of {_ALGORITHM} or string": (
        f"{_ALGORITHM} | module:name, or a list of these"
    ),
    "list of mappings": "list of names and mappings",  # of partitioners or passes
    f"{_CONSTANT} or list of {_CONSTANT} or list of any value": (
        "booleans, numbers, strings or nested lists of these"
    ),
}
_FILE_EXAMPLES: Json = {
    "extends": "_phone",
    "defaults": {"partitioners": ["xnnpack"]},
    "matrix": {"size": ["small", "large"]},
    "package": "asr-${matrix.size}",
}
_GROUPS = ("methods.<method>", "emit", "validate")
# What the members of a mapping are if they aren't methods, and an example of each.
_MEMBERS = {"validate.metrics": "<metric>"}
_EXAMPLES = {"<method>": "decode", "<metric>": "top1"}


@dataclass
class Key:
    """A key of a config.

    It has a shortest path, deeper paths in `also`, a part of the schema, and `groups`, which is
    true if its value is a mapping of other keys.
    """

    path: str
    part: Json
    required: bool
    meaning: str
    also: list[str] = field(default_factory=list)
    groups: bool = False


@cache
def _schema() -> Json:
    return PackageConfig.model_json_schema()


@cache
def keys() -> dict[str, Key]:
    """Return all keys by their shortest path, in the order of the models' fields."""
    found: dict[tuple[str, str], Key] = {}
    for key in (*_file_keys(), *_walk(_schema(), "")):
        first = found.setdefault((key.path.rpartition(".")[2], key.meaning), key)
        if first is not key:
            short, long = sorted((first.path, key.path), key=lambda path: path.count("."))
            first.path = short
            first.also.append(long)
    return {key.path: key for key in found.values()}


def _file_keys() -> Iterator[Key]:
    """Yield the keys that decide which packages a file makes, and the recipe of a method."""
    properties = json_schema()["$defs"]["File."]["properties"]
    for name in ("extends", "defaults", "matrix", "package"):
        part = {k: v for k, v in properties[name].items() if k != "$ref"}
        part = {"type": "object", **part} if name in ("defaults", "matrix") else part
        part["examples"] = [_FILE_EXAMPLES[name]]
        yield Key(name, part, False, part["description"])
    words = "The ExecuTorch recipe that replaces `quantize` and `partitioners`."
    names = [name for name, recipe in RECIPES.items() if "refused" not in recipe]
    part = {"enum": names, "examples": ["xnnpack_fp32"]}
    yield Key("methods.<method>.recipe", part, False, words)


def _walk(schema: Json, path: str) -> Iterator[Key]:
    for name, part in schema.get("properties", {}).items():
        if not path and name in _UNWRITTEN:
            continue
        own = f"{path}.{name}" if path else name
        inner, below = _inner(part, own)
        meaning = part.get("description") or (inner or {}).get("description", "")
        required = name in schema.get("required", ())
        yield Key(own, part, required, " ".join(meaning.split()), groups=inner is not None)
        if inner is not None:
            yield from _walk(inner, below)


def _inner(part: Json, path: str) -> tuple[Json | None, str]:
    """Return the model that holds the keys below a key, and the path of that mapping."""
    for each in (part, *part.get("anyOf", ())):
        if each.get("type") == "object":
            members = [*each.get("patternProperties", {}).values()]
            members.append(each.get("additionalProperties") or {})
            for member in members:
                if "$ref" in member:
                    name = _MEMBERS.get(path, "<method>")
                    return definition_of(member, _schema()["$defs"]), f"{path}.{name}"
        if "$ref" in each and each["$ref"].rpartition("/")[2] not in _APART:
            return definition_of(each, _schema()["$defs"]), path
    return None, path


def config_keys() -> Iterator[str]:
    """Yield the reference of all keys, with a heading for each."""
    group = None
    ordered = sorted(keys().values(), key=lambda key: _group(key.path))
    for key in ordered:
        if _group(key.path) != group:
            group = _group(key.path)
            yield from [f"## {_TITLES[group]}", ""]
        yield from [f"### `{key.path}`", "", _facts(key), "", plain(key.meaning), ""]
        if key.also:
            yield from [
                f"This key also exists at {_enumerate(key.also)}.",
                "",
            ]
        if not key.groups:
            yield from ["```yaml", example(key.path), "```", ""]


def _enumerate(paths: list[str]) -> str:
    *most, last = (f"`{path}`" for path in paths)
    return f"{', '.join(most)} and {last}" if most else last


def describe_keys() -> dict[str, dict[str, str]]:
    """Return the terminal's help on each key, under all of the key's paths."""
    facts = {}
    for key in keys().values():
        if key.groups:
            values, line = "a mapping of keys", ""
        else:
            kind = _kind(key.part)
            values, line = f"{kind}; {_default(key.part, key.required)}", example(key.path)
        for path in (key.path, *key.also):
            facts[path] = {"values": values, "meaning": key.meaning, "example": line}
    return dict(sorted(facts.items()))


_TITLES = ("A package", "Methods: `methods.<method>`", "The file: `emit`", "Validation: `validate`")


def _group(path: str) -> int:
    heads = [number for number, head in enumerate(_GROUPS, 1) if f"{path}.".startswith(f"{head}.")]
    return heads[0] if heads else 0


def _facts(key: Key) -> str:
    """Describe the values that a key takes, and its default."""
    if key.groups:
        return "*mapping of the keys below*"
    kind = _kind(key.part)
    link = _link(key.part)
    kind = f"[{kind}]({link})" if link else kind
    return f"*{kind}*; {_default(key.part, key.required)}"


def _kind(part: Json) -> str:
    """Describe the values that a key takes in words that are clearer than the schema's."""
    kind = describe_values(part, _schema()["$defs"])
    for unclear, clear in _CLEARER.items():
        kind = kind.replace(unclear, clear)
    return kind


def _link(part: Json) -> str:
    text = str(part)
    return next((page for model, page in _APART.items() if f"$defs/{model}'" in text), "")


def _default(part: Json, required: bool) -> str:
    if required:
        return "required"
    default = part.get("default")
    return "not set" if default in (None, {}, []) else f"default `{format_yaml(default)}`"


def example(path: str) -> str:
    """Return the example of a key on one line. Raises KeyError if there is none."""
    return _one_line(example_of(path))


def example_of(path: str) -> Any:
    """Return a part of a config that contains the example of a key."""
    (value,) = keys()[path].part["examples"]
    return _nest(path.split("."), value)


def _nest(path: list[str], value: Any) -> Any:
    """Return the part of a document that sets a key to a value."""
    for name in reversed(path):
        value = {_EXAMPLES.get(name, name): value}
    return value


def _one_line(data: Any) -> str:
    ((key, value),) = data.items()
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6)
    return f"{key}: {_scalar(text)}"


def _scalar(text: str) -> str:
    return text.removesuffix("...\n").strip()  # YAML's end marker after a lone scalar


def options() -> Iterator[str]:
    """Yield the options of every partitioner and quantizer, with a table for each."""
    for name, backend in BACKENDS.items():
        if not backend.plugin and backend.lowers:
            yield from [f"## {name}", "", f"{backend.summary}.", ""]
            yield from _table(name, "partitioner", backend.options)
            if backend.quantization is not None:
                yield from _table(name, "quantizer", backend.quantization.options)
    for name, quantizer in QUANTIZERS.items():
        if name not in BACKENDS:
            yield from [f"## {name}", "", "A quantizer without a partitioner of its own.", ""]
            yield from _table(name, "quantizer", quantizer.options)


def _table(name: str, role: str, model: type[Options]) -> Iterator[str]:
    rows = [_row(name, role, option) for option in role_options(name, role, model)]
    head = f"`partitioners: [{name}]`" if role == "partitioner" else f"`quantizer: {name}`"
    if not rows:
        yield from [f"{head} has no options.", ""]
        return
    yield from [head, "", "| option | values | default | meaning | example |"]
    yield from ["|---|---|---|---|---|", *rows, ""]


class Option(NamedTuple):
    """An option of a partitioner or a quantizer, and an example of its value."""

    name: str
    values: str
    default: str
    meaning: str
    example: Any


def role_options(name: str, role: str, model: type[Options]) -> Iterator[Option]:
    """Yield the options of a backend's `partitioner` or `quantizer`."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    for option, part in schema.get("properties", {}).items():
        value = _option_example(name, role, option, part, definitions)
        if option == "quantizer" or value is None:
            continue
        inner = next((each for each in part.get("anyOf", ()) if "description" in each), part)
        meaning = part.get("description") or inner.get("description", "")
        yield Option(
            name=option,
            values=describe_values(part, definitions),
            default=_default(part, option in schema.get("required", ())),
            meaning=" ".join(meaning.split()),
            example=value,
        )


def _row(name: str, role: str, option: Option) -> str:
    example = yaml.safe_dump(option.example, default_flow_style=True, width=10**6)
    return row(
        f"`{option.name}`",
        option.values,
        option.default.removeprefix("default "),
        option.meaning,
        f"`{option.name}: {_scalar(example)}`",
    )


@cache
def _given_examples() -> Json:
    examples: dict[str, Any] = {"beside": {}}
    for path in (OPTION_EXAMPLES, *find_files("examples.yaml")):
        part = yaml.safe_load(path.read_text(encoding="utf-8"))
        examples["beside"] |= part.pop("beside", {})
        examples |= part
    return examples


def beside(name: str, role: str, option: str) -> Json:
    """Return the other options that a backend requires along with this one."""
    given: Json = _given_examples()["beside"].get(name, {}).get(role, {})
    found: Json = given.get(option, given.get("every", {}))
    return found


def _option_example(name: str, role: str, option: str, part: Json, definitions: Json) -> Any:
    """Return an example of an option, or None if the role never takes the option.

    It is the documented example if there is one. Otherwise it is a value that the schema allows, if
    possible other than the default.
    """
    given = _given_examples()
    for owner in (name, "every"):
        if option in given.get(owner, {}).get(role, {}):
            return given[owner][role][option]
    return _other_value(part, definitions)


def _other_value(part: Json, definitions: Json) -> Any:
    default = part.get("default")
    if "$ref" in part:
        return _other_value({**definition_of(part, definitions), "default": default}, definitions)
    if "anyOf" in part:
        first = next(each for each in part["anyOf"] if each.get("type") != "null")
        return _other_value({**first, "default": default}, definitions)
    if "enum" in part:
        return next((value for value in part["enum"] if value != default), default)
    if part.get("type") == "boolean":
        return not default
    if part.get("type") in ("integer", "number"):
        return part.get("minimum", 1) if default is None else default
    if part.get("type") == "array":
        return [_other_value(part.get("items", {}), definitions)]
    return default
