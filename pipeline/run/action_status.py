"""The log and the progress file of a running action."""

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
    """Return the path of the progress file, which a running action updates."""
    return log_path(action, workspace).with_suffix(".progress")


def read_status(path: Path) -> dict[str, Any]:
    """Read the progress file of a running action; return an empty dict if it has no status yet."""
    record = read_record(path)
    return record if record and _is_status(record) else {}


_is_status = check_of(
    {"pid": int, "stage": str, "done": int, "total": int, "host?": str}
)


class ActionStatus(NamedTuple):
    """The stage of a running action, how many of its steps are done, and its machine.

    `host` is "" unless the action runs on another machine of a cluster.
    """

    stage: str
    done: int = 0
    total: int = 0
    host: str = ""


def read_progress(action: Action, workspace: Workspace) -> ActionStatus | None:
    """Return the progress of a running action, or None if it isn't running."""
    if not (status := read_status(progress_path(action, workspace))):
        return None
    return ActionStatus(
        status["stage"], status["done"], status["total"], status.get("host", "")
    )


def write_status(path: Path, stage: str, done: int, total: int, host: str = "") -> None:
    """Write the progress file of a running action."""
    status = {
        "pid": os.getpid(),
        "stage": stage,
        "done": done,
        "total": total,
        "host": host,
    }
    with suppress(OSError):
        clear_place(path)
        # In place: emptying the file first takes 0.1 ms on ext4, and validation writes often.
        with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "w") as file:
            file.write(json.dumps(status))
            file.truncate()


def log_name(action: Action, workspace: Workspace) -> str:
    """Return the path of an action's log, relative to the workspace."""
    return str(log_path(action, workspace).relative_to(workspace.root))
