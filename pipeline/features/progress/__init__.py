"""Progress: running actions and the remaining time, drawn on the terminal during a run."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "progress",
    "show running actions and the remaining time on a terminal",
    live_view="pipeline.features.progress.live:show_live",
)
