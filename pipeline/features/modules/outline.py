"""The shape of the field that this feature adds to the record of a method."""

from __future__ import annotations

from typing import Any

MODULES = (
    list[dict[str, Any]],
    "Its calls of operators by module, equal ones with their `count`: what each `runs_on`, and its",
    "`line` of the source.",
)
