"""Held state: shared buffers that a delegate keeps to itself."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "held_state",
    "refuse delegates that keep shared state to themselves; without it, only validation can "
    "detect this",
    check_shared_state="pipeline.features.held_state.held_state:refuse_held_state",
)
