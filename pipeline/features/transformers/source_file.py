"""`models/<model>.yaml`: a model of transformers in a few lines, without Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pipeline.config.yaml import Node, load_nodes
from pipeline.features.transformers.exported import Exported
from pipeline.features.transformers.hub import is_on_hub
from pipeline.store.errors import Problem, SourceError, did_you_mean, shown

SOURCE, _DTYPE = "transformers", "dtype"
_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
# The arguments of `Exported`, with the types and descriptions of their values.
_KEYS: Mapping[str, tuple[type, str]] = {
    SOURCE: (str, "the path of a folder, from the workspace, or a model of a hub"),
    "task": (str, "a task, such as text-generation"),
    "revision": (str, "a commit, in quotes where it is all digits"),
    "max_cache_len": (int, "a number of positions"),
    "dynamic": (bool, "true or false"),
    "multi_token_decode": (bool, "true or false"),
    "generate": (bool, "true or false"),
    "trust_remote_code": (bool, "true or false"),
    _DTYPE: (str, f"one of {', '.join(_DTYPES)}"),
}

_CHOOSES_CODE = (SOURCE, "revision", "trust_remote_code")


def read_source(path: str) -> Callable[..., Any]:
    """Return the `export_methods` of a source.

    It is a function whose keywords override the values in the file; they come from the `export` of
    a package config.

    Raises SourceError with all mistakes, each with its line.
    """
    file = Path(path)
    written = read_options(file)

    def export_methods(**parameters: Any) -> Any:
        options = merge_parameters(file, written, parameters)
        name = options.pop(SOURCE)
        model = name if is_on_hub(file.parents[1], name) else file.parents[1] / name
        if _DTYPE in options:
            options[_DTYPE] = _DTYPES[options[_DTYPE]]
        return Exported(model, **options).export_methods()

    return export_methods


def read_options(file: Path) -> Mapping[str, Any]:
    """Return the options in a source file. Raises SourceError with all of its mistakes."""
    name = f"{file.parent.name}/{file.name}"
    node = load_nodes(file.read_bytes(), name)
    if node is None or not isinstance(node.value, dict) or SOURCE not in node.value:
        raise SourceError(
            f"{name}: names no folder; set `{SOURCE}: checkpoints/...` and `task: ...`"
        )
    members: Mapping[str, Node] = node.value
    lines = {key: member.line for key, member in members.items()}
    written = {key: member.value for key, member in members.items()}
    _check(written, name, lines)
    return written


def merge_parameters(
    file: Path, written: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a source's options, overridden by a package config's.

    Raises SourceError if a value is invalid, or if the config chooses code: configs are data.
    """
    name = f"{file.parent.name}/{file.name}"
    _check(parameters, f"{name}: export")
    if chosen := [key for key in _CHOOSES_CODE if key in parameters]:
        fault = f"chooses code that runs, so only {name} can set it"
        raise SourceError(*(f"{name}: export: {key}: {fault}" for key in chosen))
    return {**written, **parameters}


def _check(
    values: Mapping[str, Any], file: str, lines: Mapping[str, int] | None = None
) -> None:
    """Raise SourceError if a key is unknown or has an invalid value."""
    problems = []
    for key, value in values.items():
        line = (lines or {}).get(key, 0)
        if key not in _KEYS:
            hint = did_you_mean(str(key), _KEYS)
            problems.append(Problem(file, str(key), "unknown key", hint, line))
            continue
        kind, expected = _KEYS[key]
        if type(value) is not kind or (key == _DTYPE and value not in _DTYPES):
            fault = f"{shown(value)}, must be {expected}"
            problems.append(Problem(file, key, fault, "", line))
    if problems:
        raise SourceError(*map(str, problems))
