"""Keeps the workspace off the module search path in untrusted builds.

Otherwise a file in an untrusted workspace that shares its name with an installed module
(`filelock.py`) would be imported in its place, by the building process and by its workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pte_pipeline.bytecode import check_bytecode
from pte_pipeline.name_conflict import claim_pipeline

SAFE_PATH = "PYTHONSAFEPATH"


def is_untrusted() -> bool:
    """Return whether this build is untrusted, as for a change from an outside contributor."""
    return os.environ.get("PTE_PIPELINE_UNTRUSTED", "") not in ("", "0", "false")


@contextmanager
def starting_safely() -> Iterator[None]:
    """Within the context of an untrusted build, let processes start without the current folder.

    Python would search the folder for the modules that a command names before all others. Joblib
    and Python start trackers of resources with such commands.
    """
    if not is_untrusted() or SAFE_PATH in os.environ:
        yield
        return
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[SAFE_PATH]


def leave_workspace_out(root: Path) -> None:
    """Take the workspace, its folder of models and the current folder off the module search path.

    The environment's folders stay, even if they lie inside the workspace.
    """
    here = os.path.realpath(os.curdir)
    root_folder = os.path.realpath(root)
    folders = {here, root_folder, os.path.join(root_folder, "models")}
    sys.path[:] = [path for path in sys.path if os.path.realpath(path or os.curdir) not in folders]


def begin_worker(is_users: bool, copied_well: Sequence[str]) -> None:
    """Set a worker up, before anything of this package is unpickled there.

    Args:
        copied_well: as for `check_bytecode`.
        is_users: whether the user set the variable that started the worker safely. If not, it is
            removed again, since exporters may read the environment.
    """
    if not is_users:
        os.environ.pop(SAFE_PATH, None)
    check_bytecode(copied_well)
    claim_pipeline()
