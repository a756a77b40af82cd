"""The timeline of a run: `build/timeline.json`, for Perfetto, and the limits on the run's speed.

trace     what each worker did when, in the Trace Event format
words     the schedule, in sentences
schedule  the longest chain of actions, and the time in which workers were idle
"""

from __future__ import annotations

from pipeline.moments import Feature

FEATURE = Feature(
    "timeline",
    "write timeline.json for Perfetto, and name the chain of actions that bounded a run",
    record_run="pipeline.features.timeline.trace:write_timeline",
    find_schedule="pipeline.features.timeline.words:find_schedule",
)
