"""The forms of the JSON sent to a cluster's workers, and of their answers and progress messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, check_of
from pipeline.store.pieces import Piece
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.usage import Usage

Json = Mapping[str, Any]
TOPIC = "pte-pipeline"  # of the workers' messages to all builds
RESOURCE = "pte-"  # prefix of a tag's name as a dask resource
MEMORY = f"{RESOURCE}memory"  # in bytes

# A parcel: a requested action with everything that it refers to, for a worker that has neither the
# workspace nor the plan.
_PARCEL = {
    "request": str,  # the action, as written by `plan.requests`
    "build": str,  # the build folder, as a path in the workspace
    "files": dict[str, Digest],  # of the workspace, by path
    "results": list[Digest],  # the actions whose results it reads
    "blobs": list[Digest],  # further blobs that it reads, if the driver knows them
    "operators": tuple[
        list[str], bool
    ],  # libraries, and whether `operators/` may be loaded
    "crashes": dict[
        str, str
    ],  # the methods that have crashed their worker, as in `CrashLog`
    "always": bool,
    "fast_lowering": bool,
    "refit": bool,
}
# An event of a report without its names, which the driver knows.
_EVENT = {
    "outcome": Literal["built", "refit", "hit", "failed", "lost"],
    "start": float,
    "seconds": float,
    "stages": list[tuple[str, float, float]],
    "stage": str,
    "worker": Count,
    "peak_bytes": Count,
    "error": str,
}
_RESULT = {
    "files": {FileName: Digest},
    "joined?": {FileName: list[Piece]},
    "facts?": dict[str, Any],
}
# An answer to a parcel: one of the first four fields, and the output of its process.
_ANSWER = {
    "done?": {
        "event": _EVENT,
        "usage": dict[str, Usage],
        "remote": tuple[RemoteCounts, str] | None,
        "result": (_RESULT, None),
    },
    # How the action's key would differ on the worker, and whether only in facts about the machine:
    # then the driver's machine can run the action.
    "refused?": {"differences": list[str], "here": bool},
    # How the action's process ended, as in `WorkerLostError`, and at which step of a validation.
    "lost?": {
        "signals": str,
        "stage": str,
        "peak_bytes": Count,
        "system": str,
        "step": str,
    },
    "missing?": str,
    "log": str,
    "worker": str,  # dask's address of the worker
    "host": str,  # the name of its machine
}
# A worker's message about a running parcel: its progress, and its output since the last message.
_PROGRESS = {
    "parcel": str,
    "worker": str,
    "host": str,
    "log": str,
    "stage": str,
    "done": Count,
    "total": Count,
    "peak_bytes": Count,
}

is_parcel = check_of(_PARCEL)
is_answer = check_of(_ANSWER)
is_progress = check_of(_PROGRESS)
