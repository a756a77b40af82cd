"""The parameters of exporters.

An export is named by its model and parameters. The parameters that an exporter takes are read from
its source without importing it.
"""

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
    """Return the name of an export: `llama`, or `llama+dtype~bf16+max_seq_len~2048`."""
    words = [
        f"{name}~{quote(_spell(value), safe='')}"
        for name, value in sorted(parameters.items())
    ]
    return "+".join([model, *words])


def parse_export(name: str) -> tuple[str, dict[str, Any]]:
    """Return the model and the parameters in the name of an export."""
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
    """Read the signature of `export_methods` as JSON.

    The keys are the `names` of its parameters, the `required` ones, and whether it accepts `any`
    others.

    Returns None if the source alone doesn't tell.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # running the exporter reports the error
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
    """Yield each wrong parameter, what is wrong with it, and what would be right.

    A required parameter that is missing has the name "".

    Args:
        taken: the parameters that the exporter takes, from `read_parameters`.
    """
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
