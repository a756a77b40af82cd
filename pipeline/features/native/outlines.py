"""The shapes of the fields that devices add to reports."""

from __future__ import annotations

from typing import Any

DEVICES = (dict[str, dict[str, Any]], "The results of the validation on each device.")
PROFILES = (
    dict[str, dict[str, Any]],
    "By method, how the time of a call on a device was spent.",
)
