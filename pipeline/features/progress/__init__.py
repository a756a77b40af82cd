"""Progress: what goes on and how long it will take, drawn on the terminal while actions run."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "progress",
    "draw on a terminal which actions run, and how much time is left",
    live_view="pipeline.features.progress.live:show_live",
)
