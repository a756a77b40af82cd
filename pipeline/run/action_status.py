"""Files in which an action under way says how far it is, and the logs beside them."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.plan.actions import Action
from pipeline.store.files import clear_place, read_record
from pipeline.store.forms import check_of
from pipeline.store.names import shorten_name
from pipeline.store.workspace import Workspace


def log_path(action: Action, workspace: Workspace) -> Path:
    folder = workspace.logs / (action.package or "models")
    subject = action.method or action.package or action.model
    return folder / f"{shorten_name(f'{action.kind}-{subject}')}.log"


def progress_path(action: Action, workspace: Workspace) -> Path:
    """Return the file in which an action under way says how far it is."""
    return log_path(action, workspace).with_suffix(".progress")


def read_status(path: Path) -> dict[str, Any]:
    """Read the file in which an action under way says how far it is; empty where it says nothing
    yet."""
    record = read_record(path)
    return record if record and _is_status(record) else {}


_is_status = check_of(
    {"pid": int, "stage": str, "done": int, "total": int, "host?": str}
)


class ActionStatus(NamedTuple):
    """The stage that an action is in, how many of how many steps of it are done, and the machine of
    a cluster that it runs on."""

    stage: str
    done: int = 0
    total: int = 0
    host: str = ""


def read_progress(action: Action, workspace: Workspace) -> ActionStatus | None:
    """Return how far an action is that is under way, None for any other."""
    if not (status := read_status(progress_path(action, workspace))):
        return None
    return ActionStatus(
        status["stage"], status["done"], status["total"], status.get("host", "")
    )


def write_status(path: Path, stage: str, done: int, total: int, host: str = "") -> None:
    """Write the file in which an action under way says how far it is."""
    status = {
        "pid": os.getpid(),
        "stage": stage,
        "done": done,
        "total": total,
        "host": host,
    }
    with suppress(OSError):
        clear_place(path)
        path.write_text(json.dumps(status))


def log_name(action: Action, workspace: Workspace) -> str:
    """Return the path of an action's log in the workspace."""
    return str(log_path(action, workspace).relative_to(workspace.root))
