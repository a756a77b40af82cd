"""Writes `contents.json` at the link step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.features.inspection.contents import describe_contents
from pipeline.run.build.link import LinkedPackage
from pipeline.store.digest import Digest
from pipeline.store.files import CONTENTS, record_bytes


def write_contents(package: LinkedPackage) -> dict[str, Digest]:
    """Store the description of a package's contents; return its digest by file name."""
    unit_of = {
        method: unit for unit in package.units.values() for method in unit["methods"]
    }
    contents = describe_contents(
        {name: file.path for name, file in package.files.items()},
        {name: unit["methods"][name]["constants"] for name, unit in unit_of.items()},
        {name: _named_keys(unit["object"], name) for name, unit in unit_of.items()},
        {name: file.digests for name, file in package.files.items()},
    )
    return {CONTENTS: package.store.put(record_bytes(contents))}


def _named_keys(parts: Mapping[str, Any], method: str) -> list[str]:
    """Return the keys of the named data that a method's delegates use, sorted."""
    if parts["keys"]:
        return sorted(parts["keys"][method])
    keys = {data["key"] for data in parts["named"]}
    for named in parts["named_external"].values():
        keys.update(data["key"] for data in named)
    return sorted(keys)
