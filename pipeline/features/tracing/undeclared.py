"""Formats the undeclared reads in an error."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_NAMED = 12


def list_undeclared(names: Iterable[str]) -> str:
    """Return the places that are read but not declared, as text for an error."""
    listed = sorted(set(names))
    more = ""
    if len(listed) > _MOST_NAMED:
        more = f" and {len(listed) - _MOST_NAMED} more"
    return ", ".join(listed[:_MOST_NAMED]) + more
