"""The forms of what goes to a cluster's worker and comes back, and of what it says meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pipeline.store.digest import Digest
from pipeline.store.forms import Count, FileName, check_of
from pipeline.store.pieces import Piece
from pipeline.store.remote_tier import RemoteCounts
from pipeline.store.usage import Usage

Json = Mapping[str, Any]
TOPIC = "pte-pipeline"  # of what workers say to all builds
RESOURCE = "pte-"  # before the name of a tag, as dask calls it
MEMORY = f"{RESOURCE}memory"  # in bytes

# A parcel: a requested action with what it names, for a worker that has neither its workspace nor
# its plan.
_PARCEL = {
    "request": str,  # the action, as `plan.requests` writes it
    "build": str,  # the folder of builds, as a path in the workspace
    "files": dict[str, Digest],  # of the workspace, by path
    "results": list[Digest],  # the actions whose results it reads
    "blobs": list[Digest],  # those that it reads too, as far as the driver knows them
    "operators": tuple[
        list[str], bool
    ],  # libraries, and whether `operators/` may be loaded
    "crashes": dict[
        str, str
    ],  # the methods that have ended their worker, as in `CrashLog`
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
# An answer to a parcel, one of the first four, and what its process printed.
_ANSWER = {
    "done?": {
        "event": _EVENT,
        "usage": dict[str, Usage],
        "remote": tuple[RemoteCounts, str] | None,
        "result": (_RESULT, None),
    },
    # How the action's key would differ there, and whether only facts of the machine do: then the
    # driver's own can take it.
    "refused?": {"differences": list[str], "here": bool},
    # The end of its process, as in `WorkerLostError`, and at which step of a validation.
    "lost?": {
        "signals": str,
        "stage": str,
        "peak_bytes": Count,
        "system": str,
        "step": str,
    },
    "missing?": str,
    "log": str,
    "worker": str,  # dask's address of who gives it
    "host": str,  # the name of its machine
}
# A worker's word of a parcel under way: how far it is, and what its process printed since the last.
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
