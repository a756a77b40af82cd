"""Finds the families of backends, each a folder, and reads their data files.

Each is a feature (`moments.Feature.entries`). Its folder holds the catalogue entries, the modules,
and, if needed, these data files: linking.toml (what an app links), constructors.toml and
constructors.json (the callables that its options are passed to), names.toml (upstream's names that
its options accept) and examples.yaml (examples of its options, for the reference). Importing this
module imports no family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pipeline.moments import find_features

FOLDER = Path(__file__).parent
# The order in the catalogue, messages and the reference; other families follow by name.
_ORDER = (
    "xnnpack",
    "vulkan",
    "coreml",
    "apple",
    "openvino",
    "arm",
    "cortex_m",
    "add_sub",
    "torchao",
)


@cache
def find_families() -> Mapping[str, str]:
    """Return the module with each family's entries, by the family's name, in catalogue order."""
    modules = {
        feature.name: feature.entries for feature in find_features() if feature.entries
    }
    return {name: modules[name] for name in sorted(modules, key=_rank)}


def find_folder(family: str) -> Path:
    """Return the folder of a family."""
    spec = find_spec(find_families()[family])
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def find_files(name: str) -> Iterator[Path]:
    """Yield the data files with a name, starting with the one that all families share."""
    for folder in (FOLDER, *map(find_folder, find_families())):
        path = folder / name
        if path.is_file():
            yield path


def read_tables(name: str) -> dict[str, Any]:
    """Return the tables of all TOML files with a name as one: mappings are merged, lists joined."""
    merged: dict[str, Any] = {}
    for path in find_files(name):
        _merge(merged, tomllib.loads(path.read_text(encoding="utf-8")))
    return merged


def _merge(merged: dict[str, Any], table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _merge(merged.setdefault(key, {}), value)
        elif isinstance(value, list) and key in merged:
            merged[key] += value
        else:
            merged[key] = value
