"""The record of a cause, and what the rules that find causes have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.features.departures.difference import (
    RunDifference,
    innermost_forward,
    place_of,
)
from pipeline.features.departures.places import FrameCall, Place


@dataclass(frozen=True)
class Cause:
    """What to say, and what to name; by default the operator that departs, and its place.

    `call` is a line to name instead of that of the place.
    """

    text: str
    call: FrameCall | None = None
    subject: str = ""
    place: Place | None = None


def call_of(
    site: Any, difference: RunDifference, forward: bool = False
) -> FrameCall | None:
    """Return the call in the user's code to name for an operator's site."""
    place = place_of(site)
    if forward:
        return innermost_forward(place)
    return place.call(difference.root)
