"""Parameters of exporters: an export by its model and parameters, and what an exporter takes, read
from its text without importing it."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pipeline.store.errors import did_you_mean

FUNCTION = "export_methods"


def name_export(model: str, parameters: Mapping[str, Any]) -> str:
    """Return what an export is called: `llama`, or `llama+dtype~bf16+max_seq_len~2048`."""
    words = [
        f"{name}~{quote(_spell(value), safe='')}"
        for name, value in sorted(parameters.items())
    ]
    return "+".join([model, *words])


def parse_export(name: str) -> tuple[str, dict[str, Any]]:
    """Return the model and the parameters of an export's name."""
    model, *words = name.split("+")
    pairs = (word.partition("~") for word in words)
    return model, {parameter: _read(unquote(value)) for parameter, _, value in pairs}


def _spell(value: Any) -> str:
    text = json.dumps(value)
    if isinstance(value, str) and _read(value) == value:
        return value
    return text


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def read_parameters(path: Path) -> dict[str, Any] | None:
    """Read what `export_methods` takes, as JSON: `names`, those that are `required`, and whether it
    takes `any`. None where its text alone doesn't say."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # running it says why
        return None
    for node in tree.body:
        if (
            isinstance(node, ast.FunctionDef)
            and node.name == FUNCTION
            and not node.decorator_list
        ):
            return _read_signature(node.args)
    return None


def _read_signature(args: ast.arguments) -> dict[str, Any]:
    named = [argument.arg for argument in args.args]
    only = [argument.arg for argument in args.kwonlyargs]
    defaults = dict(zip(only, args.kw_defaults, strict=True))
    required = named[: max(0, len(named) - len(args.defaults))]
    required += [name for name in only if defaults[name] is None]
    return {
        "names": [*named, *only],
        "required": required,
        "any": args.kwarg is not None,
    }


def find_wrong(
    taken: Mapping[str, Any], given: Mapping[str, Any], file: str
) -> Iterator[tuple[str, str, str]]:
    """Yield a parameter, what is wrong with it, and what would be right; `taken` is what
    `read_parameters` read."""
    names = taken["names"]
    for name in given if not taken["any"] else ():
        if name not in names:
            remedy = "it takes none"
            if names:
                remedy = did_you_mean(name, names)
            yield name, f"is not a parameter of {FUNCTION}() in {file}", remedy
    for name in taken["required"]:
        if name not in given:
            yield (
                "",
                f"{FUNCTION}() in {file} needs '{name}'",
                f"set `export: {{{name}: ...}}`",
            )
