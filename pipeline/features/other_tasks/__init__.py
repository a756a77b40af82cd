"""Other tasks of a dodo file: our tasks run in sequence with them, and build from their outputs."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "other_tasks",
    "first run the user's own tasks that make build inputs, then check which inputs they changed",
    other_tasks="pipeline.features.other_tasks.phases:OtherTasks",
    pending_tasks="pipeline.features.other_tasks.pending:find_pending",
)
