"""The shape of the field that this feature adds to the record of a method."""

from __future__ import annotations

from typing import Any

MODULES = (
    list[dict[str, Any]],
    "The method's operator calls by module, with a `count` of equal calls: where each `runs_on`,",
    "and its source `line`.",
)
