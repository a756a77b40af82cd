"""The shapes of the fields that devices add to reports."""

from __future__ import annotations

from typing import Any

DEVICES = (dict[str, dict[str, Any]], "The results of the validation, by device.")
PROFILES = (
    dict[str, dict[str, Any]],
    "By method, where a call on a device spent its time.",
)
