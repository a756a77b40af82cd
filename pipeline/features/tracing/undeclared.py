"""The places in an error about reads that nothing declares."""

from __future__ import annotations

from collections.abc import Iterable

_MOST_NAMED = 12


def list_undeclared(names: Iterable[str]) -> str:
    """Return the text of an error about places that are read and not declared."""
    listed = sorted(set(names))
    more = ""
    if len(listed) > _MOST_NAMED:
        more = f" and {len(listed) - _MOST_NAMED} more"
    return ", ".join(listed[:_MOST_NAMED]) + more
