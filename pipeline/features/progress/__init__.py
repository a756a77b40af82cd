"""Progress: what goes on and how long it will take, drawn on the terminal while actions run."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "progress",
    "show running actions and the remaining time on a terminal",
    live_view="pipeline.features.progress.live:show_live",
)
