"""The shapes of what devices add to reports."""

from __future__ import annotations

from typing import Any

DEVICES = (dict[str, dict[str, Any]], "What the validation on each device gave.")
PROFILES = (
    dict[str, dict[str, Any]],
    "By method, where the time of a call went on a device.",
)
