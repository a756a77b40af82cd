"""The metadata that a package holds as a constant method, for apps without its manifest.

It depends only on the inputs of linking and not on weights, so that new weights can be put into a
linked package without linking it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.digest import canonical_json
from pipeline.store.names import METADATA

Json = Mapping[str, Any]
_FORMAT = 1


def merge_methods(units: Mapping[str, Json]) -> dict[str, Json]:
    """Return the results of all methods by name, from the results of compile actions."""
    return {
        name: method
        for unit in units.values()
        for name, method in unit["methods"].items()
    }


def make_metadata(key: Json, units: Mapping[str, Json]) -> dict[str, Any] | None:
    """Return the metadata of a package, or None if its config asks for none.

    Args:
        key: the key of its link action.
        units: the results of its compile actions.
    """
    if "metadata" not in key:
        return None
    methods = merge_methods(units)
    return {
        "format": _FORMAT,
        "package": key["package"],
        "model": key["model"],
        "target": key["target"],
        "methods": {
            name: methods[name]["signature"] for name in key["order"] if name in methods
        },
        # Tensors and dicts have no JSON form that others could read; their methods return them.
        "constants": {
            n: v for n, v in key["constant_methods"] if not isinstance(v, dict)
        },
        "toolchain": key["toolchain"],
        **key["metadata"],
    }


def all_constants(facts: Json) -> dict[str, Any]:
    """Return the constant methods of a package, including the one for its metadata.

    Args:
        facts: `constant_methods` and, if present, `metadata`, as in a manifest.
    """
    constants = dict(facts["constant_methods"])
    if metadata := facts.get("metadata"):
        constants[METADATA] = canonical_json(metadata).decode()
    return constants
