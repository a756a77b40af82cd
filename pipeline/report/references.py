"""Describes the comparison of exported programs with their references.

A reference is PyTorch in eager mode, or recorded outputs. For a method without one, the report says
that PyTorch itself was not run.
"""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.report.elements import Json
from pipeline.report.formatting import short
from pipeline.store.errors import listed

UNREFERENCED = "against the exported program; PyTorch itself was not run"
MOST_NAMED = 4


def describe_limits(reference: Json, places: Mapping[str, str] | None = None) -> str:
    """Return the limits that the config sets on a comparison with a reference, and their places.

    Returns "" if it sets none.

    Args:
        places: file and line of settings, by their path in the config.
    """
    limits = reference.get("limits", {})
    if not limits:
        return ""
    values = [f"{name} {short(value)}" for name, value in limits.items()]
    paths = reference.get("limits_from", ())
    lines = [places[path] for path in paths if places and path in places]
    where = listed([*paths, *dict.fromkeys(lines)], MOST_NAMED)
    return f"{listed(values)} ({where})"


def name_references(reference: Json) -> str:
    """Return the names of the references of an export; of many, only the first few."""
    return listed(reference["compared"], MOST_NAMED)


def is_unreferenced(method: Json) -> bool:
    """Return whether a method is compared only with its exported program."""
    return method["kind"] == "program" and not method.get("reference")
