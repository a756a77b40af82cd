"""The record of a cause, and a function that the rules for finding causes share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.features.divergences.difference import (
    RunDifference,
    innermost_forward,
    place_of,
)
from pipeline.features.divergences.places import FrameCall, Place


@dataclass(frozen=True)
class Cause:
    """A cause's text, with the subject and place to name in front of it.

    They are by default the diverging operator and its place.

    `call` is the line to name instead of the place's line.
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
