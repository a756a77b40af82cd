"""Find the families of backends, each a folder here, and read their data files.

A family's folder holds its entries of the catalogue, its modules, and these data files, where it
needs them: linking.toml (what an app links), constructors.toml and constructors.json (the callables
that its options are passed to), names.toml (upstream's names that its options take) and
examples.yaml (examples of its options, for the reference). Importing this imports no family.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# In this order the catalogue, messages and the reference list them; new families follow by name.
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
def find_families() -> tuple[str, ...]:
    """Return the names of the families in their order."""
    names = [path.parent.name for path in FOLDER.glob("*/__init__.py")]
    return tuple(sorted(names, key=_rank))


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def find_files(name: str) -> Iterator[Path]:
    """Yield the data files of a name, that of all families first."""
    for folder in (FOLDER, *(FOLDER / family for family in find_families())):
        path = folder / name
        if path.is_file():
            yield path


def read_tables(name: str) -> dict[str, Any]:
    """Return the tables of all TOML files of a name as one: mappings are merged, lists joined."""
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
