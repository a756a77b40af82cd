"""The form of each line of `build/events.jsonl`: a table of the events and their fields.

`python -m pte_pipeline.report.schema events` prints it as a JSON Schema. A reader should ignore
events and fields that it doesn't know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_type_hints

from pipeline.store.forms import Count, Ordinal, Seconds
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.usage import USAGE_RECORD

# Every line has the `run` that wrote it, since two runs can overlap, and the `time` in seconds
# since the epoch.
LINE: Mapping[str, Any] = {"run": str, "time": float}
# The names of an action. `package` is null for an export. `method` is null for an action on a whole
# package, and has `+` between methods that are compiled together.
_ACTION: Mapping[str, Any] = {
    "kind": Literal["export", "quantize", "compile", "link", "validate"],
    "package": (str, None),
    "method": (str, None),
    "model": (str, None),
}
# The outcomes of a run's requests to the remote, what was pushed to it, whether unsigned results
# are trusted, and why the remote was abandoned, if it was.
_REMOTE_USE: Mapping[str, Any] = {
    **get_type_hints(RemoteCounts, include_extras=True),
    "believes_all": bool,
    "problem": str,
}
# The other fields of each event's line, as an outline.
EVENTS: Mapping[str, Mapping[str, Any]] = {
    "run-started": {
        "format": Literal[1],
        "host": str,
        "process": Count,
        "jobs": Count,
        "executor": str,
    },
    "action-queued": {**_ACTION, "action": str, "reason": str},
    "action-started": {
        **_ACTION,
        "attempt": Ordinal,
        "expected_seconds": Seconds,
        "expected_bytes": Count,
    },
    "action-progress": {
        **_ACTION,
        "stage": str,
        "done": Count,
        "total": Count,
    },
    "action-lost": {
        **_ACTION,
        "signals": str,
        "stage": str,
        "peak_bytes": Count,
        "system": str,
        "host": str,
    },
    "action-ended": {
        **_ACTION,
        "outcome": Literal["built", "refit", "hit", "failed", "not-run"],
        "reason": str,
        "seconds": Seconds,
        "peak_bytes": Count,
        "stage": str,
        "error": str,
        "code": str,
        "log": str,
        "host": str,
    },
    "run-ended": {
        "seconds": Seconds,
        "interrupted": bool,
        "idle_seconds": Seconds,
        "outcomes": dict[str, Count],
        "caches": USAGE_RECORD,
        "remote?": (_REMOTE_USE, None),
    },
}
MEANINGS: Mapping[str, str] = {
    "run-started": """The first line of a run: its machine and process, the number of actions that
        run at a time (`jobs`), and the `executor` from the settings, "" for this machine.""",
    "action-queued": """An action was queued. `action` is the digest of its key, which two packages
        may share; `reason` says why the action is not current.""",
    "action-started": """An action was handed to the executor, for the first time or again, with its
        expected time in seconds and its expected memory in bytes.""",
    "action-progress": """The progress of an action, written within a second of a change. `total` is
        0 or 1 in a stage without steps.""",
    "action-lost": """The worker of an action died. The action is tried again, or fails.""",
    "action-ended": """The outcome of an action. Actions that were up to date have no line;
        `run-ended` counts them. `seconds` is wall time, 0 for a hit; `peak_bytes` is resident
        memory; `stage` is the stage that failed; `code` is the code of the error, such as `PTE111`;
        `log` is a path in the workspace; `host` is the machine in a cluster, "" for the run's own
        machine.""",
    "run-ended": """The last line of a run, written after its reports; a run that was killed has no
        such line. `outcomes` counts actions by outcome, including actions that were up to date;
        `remote` is null if there is none. `idle_seconds` sums, over all workers, the time in which
        a worker was free and an action was ready but waited for memory or for this process.""",
}
