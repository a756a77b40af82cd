"""The metadata that a package holds as a constant method, for an app that has no manifest.

They depend on what linking is given and nothing else. Weights are not in them, so that new weights
are put into a linked package without linking it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.store.digest import canonical_json
from pipeline.store.names import METADATA

Json = Mapping[str, Any]
_FORMAT = 1


def make_metadata(key: Json, units: Mapping[str, Json]) -> dict[str, Any] | None:
    """Return the metadata of a package, None where its config asks for none.

    Args:
        key: that of its link action.
        units: the results of its compile actions.
    """
    if "metadata" not in key:
        return None
    methods = {
        name: method
        for unit in units.values()
        for name, method in unit["methods"].items()
    }
    return {
        "format": _FORMAT,
        "package": key["package"],
        "model": key["model"],
        "target": key["target"],
        "methods": {
            name: methods[name]["signature"] for name in key["order"] if name in methods
        },
        # A tensor or a dict has no form in JSON that others would read: its method returns it.
        "constants": {
            n: v for n, v in key["constant_methods"] if not isinstance(v, dict)
        },
        "toolchain": key["toolchain"],
        **key["metadata"],
    }


def all_constants(facts: Json) -> dict[str, Any]:
    """Return the constant methods of a package with that of its metadata.

    Args:
        facts: `constant_methods` and, if it has them, `metadata`, as in a manifest.
    """
    constants = dict(facts["constant_methods"])
    if metadata := facts.get("metadata"):
        constants[METADATA] = canonical_json(metadata).decode()
    return constants
