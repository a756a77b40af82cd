"""Other tasks of a dodo file: ours run in their order, and build what they have made."""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "other_tasks",
    "run the user's own tasks that make inputs of a build first, then check which inputs they "
    "changed",
    other_tasks="pipeline.features.other_tasks.phases:OtherTasks",
    pending_tasks="pipeline.features.other_tasks.pending:find_pending",
)
