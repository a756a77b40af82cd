"""Progress: running actions and the remaining time, on a terminal or as lines of a log."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "progress",
    "show running actions and the remaining time; in a log, only actions that take long",
    live_view="pipeline.features.progress.live:show_progress",
)
